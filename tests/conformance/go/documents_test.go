package conformance

import (
	"os"
	"testing"

	"github.com/couchbase/gocb/v2"
)

func doc() object {
	return object{
		"name": "stave", "count": 3.0,
		"nested": object{"list": []any{1.0, 2.5, nil, true}, "empty": object{}},
	}
}

func TestUpsertThenGet(t *testing.T) {
	key := newKey(t)
	written := upsert(t, key, doc())
	got := must(collection.Get(key, nil))(t)
	wantEqual(t, content[object](t, key), doc())
	wantTrue(t, got.Cas() != 0, "CAS is set")
	wantEqual(t, got.Cas(), written.Cas())
}

func TestUpsertOverwritesAndChangesTheCas(t *testing.T) {
	key := newKey(t)
	first, second := upsert(t, key, 1), upsert(t, key, 2)
	wantTrue(t, first.Cas() != second.Cas(), "CAS changed")
	wantEqual(t, content[int](t, key), 2)
}

func TestCasGrowsFromWriteToWrite(t *testing.T) {
	key := newKey(t)
	last := gocb.Cas(0)
	for n := range 20 {
		cas := upsert(t, key, n).Cas()
		wantTrue(t, cas > last, "CAS grows")
		last = cas
	}
}

func TestGetOfAMissingDocument(t *testing.T) {
	_, err := collection.Get(newKey(t), nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestInsertThenGet(t *testing.T) {
	key := newKey(t)
	cas := must(collection.Insert(key, doc(), nil))(t).Cas()
	wantEqual(t, must(collection.Get(key, nil))(t).Cas(), cas)
}

func TestInsertOfAnExistingDocument(t *testing.T) {
	key := newKey(t)
	must(collection.Insert(key, 1, nil))(t)
	_, err := collection.Insert(key, 2, nil)
	wantErr(t, err, gocb.ErrDocumentExists)
	wantEqual(t, content[int](t, key), 1)
}

func TestInsertAfterRemove(t *testing.T) {
	key := newKey(t)
	must(collection.Insert(key, 1, nil))(t)
	must(collection.Remove(key, nil))(t)
	must(collection.Insert(key, 2, nil))(t)
	wantEqual(t, content[int](t, key), 2)
}

func TestReplace(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.Replace(key, 2, nil))(t)
	wantEqual(t, content[int](t, key), 2)
}

func TestReplaceOfAMissingDocument(t *testing.T) {
	_, err := collection.Replace(newKey(t), 1, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestReplaceWithTheRightCas(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 1).Cas()
	must(collection.Replace(key, 2, &gocb.ReplaceOptions{Cas: cas}))(t)
	wantEqual(t, content[int](t, key), 2)
}

func TestReplaceWithAStaleCas(t *testing.T) {
	key := newKey(t)
	stale := upsert(t, key, 1).Cas()
	upsert(t, key, 2)
	_, err := collection.Replace(key, 3, &gocb.ReplaceOptions{Cas: stale})
	wantErr(t, err, gocb.ErrCasMismatch)
	wantEqual(t, content[int](t, key), 2)
}

func TestReplaceWithACasOfAMissingDocument(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 1).Cas()
	must(collection.Remove(key, nil))(t)
	_, err := collection.Replace(key, 2, &gocb.ReplaceOptions{Cas: cas})
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestRemove(t *testing.T) {
	key := newKey(t)
	written := upsert(t, key, 1)
	removed := must(collection.Remove(key, nil))(t)
	wantTrue(t, removed.Cas() != 0 && removed.Cas() != written.Cas(), "the removal has its own CAS")
	_, err := collection.Get(key, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestRemoveOfAMissingDocument(t *testing.T) {
	_, err := collection.Remove(newKey(t), nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestRemoveTwice(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.Remove(key, nil))(t)
	_, err := collection.Remove(key, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestRemoveWithTheRightCas(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 1).Cas()
	must(collection.Remove(key, &gocb.RemoveOptions{Cas: cas}))(t)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestRemoveWithAStaleCas(t *testing.T) {
	key := newKey(t)
	stale := upsert(t, key, 1).Cas()
	upsert(t, key, 2)
	_, err := collection.Remove(key, &gocb.RemoveOptions{Cas: stale})
	wantErr(t, err, gocb.ErrCasMismatch)
	wantTrue(t, exists(t, key), "the document is there")
}

func TestExistsOfADocument(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 1).Cas()
	result := must(collection.Exists(key, nil))(t)
	wantTrue(t, result.Exists(), "the document is there")
	wantEqual(t, result.Cas(), cas)
}

func TestExistsOfAMissingDocument(t *testing.T) {
	wantTrue(t, !exists(t, newKey(t)), "the document is not there")
}

func TestExistsOfARemovedDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.Remove(key, nil))(t)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestMutationTokens(t *testing.T) {
	key := newKey(t)
	last := uint64(0)
	for name, write := range []func() (*gocb.MutationResult, error){
		func() (*gocb.MutationResult, error) { return collection.Insert(key, 1, nil) },
		func() (*gocb.MutationResult, error) { return collection.Upsert(key, 2, nil) },
		func() (*gocb.MutationResult, error) { return collection.Replace(key, 3, nil) },
		func() (*gocb.MutationResult, error) { return collection.Remove(key, nil) },
	} {
		token := must(write())(t).MutationToken()
		if token == nil {
			t.Fatalf("write %d: no mutation token", name)
		}
		wantEqual(t, token.BucketName(), os.Getenv("STAVE_BUCKET"))
		wantTrue(t, token.PartitionUUID() != 0, "the vBucket's uuid is set")
		wantTrue(t, token.PartitionID() < 1024, "the vBucket is one of 1024")
		wantTrue(t, token.SequenceNumber() > last, "the seqno grows")
		last = token.SequenceNumber()
	}
}

func TestGetWithProjection(t *testing.T) {
	key := newKey(t)
	upsert(t, key, doc())
	var got object
	result := must(collection.Get(key, &gocb.GetOptions{Project: []string{"name", "nested.list"}}))(t)
	ok(t, result.Content(&got))
	wantEqual(t, got, object{"name": "stave", "nested": object{"list": []any{1.0, 2.5, nil, true}}})
}

func TestGetWithMoreProjectionsThanOneLookupHolds(t *testing.T) {
	key := newKey(t)
	wide, names := object{}, []string{}
	for n := range 20 {
		name := "field" + string(rune('a'+n))
		wide[name] = float64(n)
		names = append(names, name)
	}
	upsert(t, key, object{"other": 1, "fielda": 0, "fieldb": 1, "fieldc": 2, "fieldd": 3, "fielde": 4, "fieldf": 5,
		"fieldg": 6, "fieldh": 7, "fieldi": 8, "fieldj": 9, "fieldk": 10, "fieldl": 11, "fieldm": 12, "fieldn": 13,
		"fieldo": 14, "fieldp": 15, "fieldq": 16, "fieldr": 17, "fields": 18, "fieldt": 19})
	var got object
	ok(t, must(collection.Get(key, &gocb.GetOptions{Project: names}))(t).Content(&got))
	wantEqual(t, got, wide)
}

func TestGetWithProjectionOfAMissingDocument(t *testing.T) {
	_, err := collection.Get(newKey(t), &gocb.GetOptions{Project: []string{"name"}})
	wantErr(t, err, gocb.ErrDocumentNotFound)
}
