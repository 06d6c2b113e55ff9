package conformance

import (
	"errors"
	"testing"

	"github.com/couchbase/gocb/v2"
)

var levels = map[string]gocb.DurabilityLevel{
	"majority":                       gocb.DurabilityLevelMajority,
	"majority and persist on active": gocb.DurabilityLevelMajorityAndPersistOnMaster,
	"persist to majority":            gocb.DurabilityLevelPersistToMajority,
}

// honoured is true if the write was done, false if it was refused as impossible; which of the two is logged.
func honoured(t *testing.T, cas gocb.Cas, err error) bool {
	t.Helper()
	if errors.Is(err, gocb.ErrDurabilityImpossible) {
		t.Log("durability: refused")
		return false
	}
	ok(t, err)
	wantTrue(t, cas != 0, "CAS is set")
	t.Log("durability: honoured")
	return true
}

func casOf(result *gocb.MutationResult, err error) (gocb.Cas, error) {
	if err != nil {
		return 0, err
	}
	return result.Cas(), nil
}

func TestDurableWrites(t *testing.T) {
	for name, level := range levels {
		t.Run("upsert "+name, func(t *testing.T) {
			key := newKey(t)
			cas, err := casOf(collection.Upsert(key, 1, &gocb.UpsertOptions{DurabilityLevel: level, Timeout: long}))
			wantEqual(t, exists(t, key), honoured(t, cas, err))
		})
		t.Run("insert "+name, func(t *testing.T) {
			key := newKey(t)
			cas, err := casOf(collection.Insert(key, 1, &gocb.InsertOptions{DurabilityLevel: level, Timeout: long}))
			wantEqual(t, exists(t, key), honoured(t, cas, err))
		})
		t.Run("replace "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, 1)
			cas, err := casOf(collection.Replace(key, 2, &gocb.ReplaceOptions{DurabilityLevel: level, Timeout: long}))
			wantEqual(t, content[int](t, key) == 2, honoured(t, cas, err))
		})
		t.Run("remove "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, 1)
			cas, err := casOf(collection.Remove(key, &gocb.RemoveOptions{DurabilityLevel: level, Timeout: long}))
			wantEqual(t, !exists(t, key), honoured(t, cas, err))
		})
		t.Run("mutate in "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, object{"v": 1})
			opts := &gocb.MutateInOptions{DurabilityLevel: level, Timeout: long}
			result, err := mutate(key, opts, gocb.UpsertSpec("v", 2, nil))
			var cas gocb.Cas
			if err == nil {
				cas = result.Cas()
			}
			wantEqual(t, content[object](t, key)["v"] == 2.0, honoured(t, cas, err))
		})
		t.Run("increment "+name, func(t *testing.T) {
			key := newKey(t)
			opts := &gocb.IncrementOptions{Initial: 7, Delta: 1, DurabilityLevel: level, Timeout: long}
			result, err := collection.Binary().Increment(key, opts)
			var cas gocb.Cas
			if err == nil {
				cas = result.Cas()
			}
			wantEqual(t, exists(t, key), honoured(t, cas, err))
		})
		t.Run("append "+name, func(t *testing.T) {
			key := newKey(t)
			store(t, key, "a")
			opts := &gocb.AppendOptions{DurabilityLevel: level, Timeout: long}
			cas, err := casOf(collection.Binary().Append(key, []byte("b"), opts))
			wantEqual(t, string(rawContent(t, key)) == "ab", honoured(t, cas, err))
		})
		t.Run("prepend "+name, func(t *testing.T) {
			key := newKey(t)
			store(t, key, "b")
			opts := &gocb.PrependOptions{DurabilityLevel: level, Timeout: long}
			cas, err := casOf(collection.Binary().Prepend(key, []byte("a"), opts))
			wantEqual(t, string(rawContent(t, key)) == "ab", honoured(t, cas, err))
		})
		t.Run("decrement "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, 7)
			opts := &gocb.DecrementOptions{Delta: 3, DurabilityLevel: level, Timeout: long}
			result, err := collection.Binary().Decrement(key, opts)
			ok(t, err)
			wantEqual(t, []uint64{result.Content(), uint64(content[int](t, key))}, []uint64{4, 4})
		})
		t.Run("replace with CAS "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, 1)
			present := must(collection.Get(key, nil))(t).Cas()
			opts := &gocb.ReplaceOptions{Cas: present + 1, DurabilityLevel: level, Timeout: long}
			_, err := collection.Replace(key, 2, opts)
			wantErr(t, err, gocb.ErrCasMismatch)
			wantEqual(t, content[int](t, key), 1)
			opts.Cas = present
			replaced := must(collection.Replace(key, 3, opts))(t)
			wantEqual(t, must(collection.Get(key, nil))(t).Cas(), replaced.Cas())
			wantEqual(t, content[int](t, key), 3)
		})
		t.Run("remove with CAS "+name, func(t *testing.T) {
			key := newKey(t)
			upsert(t, key, 1)
			present := must(collection.Get(key, nil))(t).Cas()
			opts := &gocb.RemoveOptions{Cas: present + 1, DurabilityLevel: level, Timeout: long}
			_, err := collection.Remove(key, opts)
			wantErr(t, err, gocb.ErrCasMismatch)
			opts.Cas = present
			must(collection.Remove(key, opts))(t)
			wantTrue(t, !exists(t, key), "the document is gone")
		})
	}
}

func TestDurableReplaceOfAMissingDocument(t *testing.T) {
	opts := &gocb.ReplaceOptions{DurabilityLevel: gocb.DurabilityLevelMajority, Timeout: long}
	_, err := collection.Replace(newKey(t), 1, opts)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

// The SDK waits by asking for the vBucket's persisted seqno.
func TestObservedPersistence(t *testing.T) {
	key := newKey(t)
	result := must(collection.Upsert(key, 1, &gocb.UpsertOptions{PersistTo: 1, Timeout: long}))(t)
	wantEqual(t, must(collection.Get(key, nil))(t).Cas(), result.Cas())
	must(collection.Remove(key, &gocb.RemoveOptions{PersistTo: 1, Timeout: long}))(t)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestObservedPersistenceOfMutateInAndCounter(t *testing.T) {
	key := newKey(t)
	opts := &gocb.IncrementOptions{Initial: 1, Delta: 1, PersistTo: 1, Timeout: long}
	must(collection.Binary().Increment(key, opts))(t)
	upsert(t, key, object{})
	must(mutate(key, &gocb.MutateInOptions{PersistTo: 1, Timeout: long}, gocb.UpsertSpec("a", 1, nil)))(t)
	wantEqual(t, content[object](t, key), object{"a": 1.0})
}

func TestObservedReplication(t *testing.T) {
	_, err := collection.Upsert(newKey(t), 1, &gocb.UpsertOptions{ReplicateTo: 1, Timeout: long})
	if hasReplicas() {
		ok(t, err)
		return
	}
	wantErr(t, err, gocb.ErrDurabilityImpossible)
}
