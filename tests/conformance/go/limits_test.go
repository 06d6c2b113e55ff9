package conformance

import (
	"bytes"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/couchbase/gocb/v2"
)

const valueLimit = 20 * mib

var rawBinary = gocb.NewRawBinaryTranscoder()

func upsertRaw(key string, value []byte) error {
	_, err := collection.Upsert(key, value, &gocb.UpsertOptions{Transcoder: rawBinary, Timeout: long})
	return err
}

func rawContent(t *testing.T, key string) []byte {
	t.Helper()
	var value []byte
	result := must(collection.Get(key, &gocb.GetOptions{Transcoder: rawBinary, Timeout: long}))(t)
	ok(t, result.Content(&value))
	return value
}

// incompressible is `size` bytes that Snappy cannot make smaller.
func incompressible(t *testing.T, size int) []byte {
	t.Helper()
	value := make([]byte, size)
	if _, err := rand.Read(value); err != nil {
		t.Fatal(err)
	}
	return value
}

func padded(t *testing.T, length int) string {
	key := newKey(t)
	return key + strings.Repeat("x", length-len(key))
}

func TestKeyOfOneByte(t *testing.T) {
	upsert(t, "g", 1)
	wantEqual(t, content[int](t, "g"), 1)
}

func TestKeyOf250Bytes(t *testing.T) {
	key := padded(t, 250)
	upsert(t, key, 1)
	wantEqual(t, content[int](t, key), 1)
}

func TestKeyOf251Bytes(t *testing.T) {
	_, err := collection.Upsert(padded(t, 251), 1, nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
	_, err = collection.Get(padded(t, 251), nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestKeyLengthIsCountedInBytes(t *testing.T) {
	_, err := collection.Upsert(strings.Repeat("é", 126), 1, nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestEmptyKey(t *testing.T) {
	_, err := collection.Upsert("", 1, nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestEmptyValue(t *testing.T) {
	key := newKey(t)
	ok(t, upsertRaw(key, []byte{}))
	wantEqual(t, len(rawContent(t, key)), 0)
}

func TestValueOf20MiB(t *testing.T) {
	key := newKey(t)
	value := incompressible(t, valueLimit)
	ok(t, upsertRaw(key, value))
	wantTrue(t, bytes.Equal(rawContent(t, key), value), "the value comes back")
	must(collection.Remove(key, nil))(t)
}

func TestValueOf20MiBAndAByte(t *testing.T) {
	key := newKey(t)
	wantErr(t, upsertRaw(key, incompressible(t, valueLimit+1)), gocb.ErrValueTooLarge)
	wantTrue(t, !exists(t, key), "nothing is stored")
}

// The SDK sends this as about 1 MiB of Snappy.
func TestValueThatIsTooLargeOnlyWhenInflated(t *testing.T) {
	key := newKey(t)
	wantErr(t, upsertRaw(key, bytes.Repeat([]byte("a"), valueLimit+1)), gocb.ErrValueTooLarge)
	wantTrue(t, !exists(t, key), "nothing is stored")
}

func TestAppendBeyond20MiB(t *testing.T) {
	key := newKey(t)
	ok(t, upsertRaw(key, bytes.Repeat([]byte("a"), valueLimit)))
	_, err := collection.Binary().Append(key, []byte("!"), nil)
	wantErr(t, err, gocb.ErrValueTooLarge)
	must(collection.Remove(key, nil))(t)
}

func TestConnectionWorksAfterAValueThatIsTooLarge(t *testing.T) {
	key := newKey(t)
	wantErr(t, upsertRaw(key, incompressible(t, valueLimit+1)), gocb.ErrValueTooLarge)
	upsert(t, key, "small")
	wantEqual(t, content[string](t, key), "small")
}
