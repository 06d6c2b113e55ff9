package conformance

import (
	"testing"

	"github.com/couchbase/gocb/v2"
)

func store(t *testing.T, key, value string) *gocb.MutationResult {
	t.Helper()
	return must(collection.Upsert(key, []byte(value), &gocb.UpsertOptions{Transcoder: rawBinary}))(t)
}

func increment(t *testing.T, key string, delta uint64, initial int64) *gocb.CounterResult {
	t.Helper()
	return must(collection.Binary().Increment(key, &gocb.IncrementOptions{Delta: delta, Initial: initial}))(t)
}

func decrement(t *testing.T, key string, delta uint64, initial int64) *gocb.CounterResult {
	t.Helper()
	return must(collection.Binary().Decrement(key, &gocb.DecrementOptions{Delta: delta, Initial: initial}))(t)
}

func TestAppend(t *testing.T) {
	key := newKey(t)
	before := store(t, key, "middle")
	result := must(collection.Binary().Append(key, []byte("-end"), nil))(t)
	wantTrue(t, result.Cas() != 0 && result.Cas() != before.Cas(), "appending changes the CAS")
	wantTrue(t, result.MutationToken().SequenceNumber() > before.MutationToken().SequenceNumber(), "seqno grows")
	wantEqual(t, string(rawContent(t, key)), "middle-end")
}

func TestPrepend(t *testing.T) {
	key := newKey(t)
	store(t, key, "middle")
	must(collection.Binary().Prepend(key, []byte("begin-"), nil))(t)
	wantEqual(t, string(rawContent(t, key)), "begin-middle")
}

func TestAppendOfBytesThatAreNotText(t *testing.T) {
	key := newKey(t)
	store(t, key, "\x00\x01")
	must(collection.Binary().Append(key, []byte("\xff\xfe\x00"), nil))(t)
	wantEqual(t, string(rawContent(t, key)), "\x00\x01\xff\xfe\x00")
}

func TestAppendToAMissingDocument(t *testing.T) {
	_, err := collection.Binary().Append(newKey(t), []byte("x"), nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestPrependToAMissingDocument(t *testing.T) {
	_, err := collection.Binary().Prepend(newKey(t), []byte("x"), nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestAppendWithTheRightCas(t *testing.T) {
	key := newKey(t)
	cas := store(t, key, "a").Cas()
	must(collection.Binary().Append(key, []byte("b"), &gocb.AppendOptions{Cas: cas}))(t)
	wantEqual(t, string(rawContent(t, key)), "ab")
}

func TestAppendWithAStaleCas(t *testing.T) {
	key := newKey(t)
	stale := store(t, key, "a").Cas()
	store(t, key, "b")
	_, err := collection.Binary().Append(key, []byte("c"), &gocb.AppendOptions{Cas: stale})
	wantErr(t, err, gocb.ErrCasMismatch)
	wantEqual(t, string(rawContent(t, key)), "b")
}

func TestPrependWithAStaleCas(t *testing.T) {
	key := newKey(t)
	stale := store(t, key, "a").Cas()
	store(t, key, "b")
	_, err := collection.Binary().Prepend(key, []byte("c"), &gocb.PrependOptions{Cas: stale})
	wantErr(t, err, gocb.ErrCasMismatch)
	wantEqual(t, string(rawContent(t, key)), "b")
}

func TestIncrementCreatesWithTheInitialValue(t *testing.T) {
	wantEqual(t, increment(t, newKey(t), 5, 100).Content(), uint64(100))
}

func TestIncrementAddsTheDelta(t *testing.T) {
	key := newKey(t)
	increment(t, key, 1, 100)
	wantEqual(t, increment(t, key, 5, 0).Content(), uint64(105))
}

func TestIncrementWithoutInitialDoesNotCreate(t *testing.T) {
	key := newKey(t)
	_, err := collection.Binary().Increment(key, &gocb.IncrementOptions{Delta: 1, Initial: -1})
	wantErr(t, err, gocb.ErrDocumentNotFound)
	wantTrue(t, !exists(t, key), "nothing is created")
}

func TestDecrementCreatesWithTheInitialValue(t *testing.T) {
	wantEqual(t, decrement(t, newKey(t), 5, 100).Content(), uint64(100))
}

func TestDecrementSubtractsTheDelta(t *testing.T) {
	key := newKey(t)
	increment(t, key, 1, 100)
	wantEqual(t, decrement(t, key, 30, 0).Content(), uint64(70))
}

func TestDecrementStopsAtZero(t *testing.T) {
	key := newKey(t)
	increment(t, key, 1, 3)
	wantEqual(t, decrement(t, key, 10, 0).Content(), uint64(0))
	wantEqual(t, decrement(t, key, 1, 0).Content(), uint64(0))
}

func TestDecrementWithoutInitialDoesNotCreate(t *testing.T) {
	key := newKey(t)
	_, err := collection.Binary().Decrement(key, &gocb.DecrementOptions{Delta: 1, Initial: -1})
	wantErr(t, err, gocb.ErrDocumentNotFound)
	wantTrue(t, !exists(t, key), "nothing is created")
}

func TestCounterIsStoredAsDecimalText(t *testing.T) {
	key := newKey(t)
	increment(t, key, 1, 41)
	increment(t, key, 1, 0)
	wantEqual(t, content[int](t, key), 42)
}

func TestCounterOnADocumentWrittenAsAJSONNumber(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 7)
	wantEqual(t, increment(t, key, 3, 0).Content(), uint64(10))
}

func TestCounterBeyond32Bits(t *testing.T) {
	key := newKey(t)
	increment(t, key, 1, 1<<40)
	wantEqual(t, increment(t, key, 1<<40, 0).Content(), uint64(1<<41))
}

func TestCounterWraps(t *testing.T) {
	key := newKey(t)
	store(t, key, "18446744073709551615")
	wantEqual(t, increment(t, key, 2, 0).Content(), uint64(1))
}

func TestCounterOfADocumentThatIsNotANumber(t *testing.T) {
	key := newKey(t)
	upsert(t, key, object{"v": 1.0})
	_, err := collection.Binary().Increment(key, &gocb.IncrementOptions{Delta: 1})
	wantErr(t, err, gocb.ErrDeltaInvalid)
	_, err = collection.Binary().Decrement(key, &gocb.DecrementOptions{Delta: 1})
	wantErr(t, err, gocb.ErrDeltaInvalid)
	wantEqual(t, content[object](t, key), object{"v": 1.0})
}

func TestCounterReturnsCasAndMutationToken(t *testing.T) {
	key := newKey(t)
	result := increment(t, key, 1, 1)
	wantTrue(t, result.Cas() != 0, "CAS is set")
	wantEqual(t, result.Cas(), must(collection.Get(key, nil))(t).Cas())
	wantTrue(t, result.MutationToken().SequenceNumber() > 0, "seqno is set")
}
