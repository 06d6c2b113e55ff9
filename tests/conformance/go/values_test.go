package conformance

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/couchbase/gocb/v2"
)

var texts = []string{
	"ключ", "鍵", "🗝️ 🇪🇺", "e\u0301 and é", "\u202eright to left", "tab\tand\nnewline", "\x01control",
}

func TestJSONValueRoundTrip(t *testing.T) {
	for _, value := range []any{
		object{}, []any{}, object{"a": object{"b": []any{1.0, object{"c": nil}}}}, "text", "", 0.0, -1.0,
		float64(1 << 53), 1.5e300, true, false, nil,
	} {
		key := newKey(t)
		upsert(t, key, value)
		wantEqual(t, content[any](t, key), value)
	}
}

func TestRawJSONIsReturnedByteForByte(t *testing.T) {
	key := newKey(t)
	raw := gocb.NewRawJSONTranscoder()
	text := []byte(`{ "spaces" :  1.0, "dup":1, "dup":2, "esc":"\u0041" }`)
	must(collection.Upsert(key, text, &gocb.UpsertOptions{Transcoder: raw}))(t)
	var got []byte
	ok(t, must(collection.Get(key, &gocb.GetOptions{Transcoder: raw}))(t).Content(&got))
	wantEqual(t, string(got), string(text))
	wantTrue(t, json.Valid(got), "the JSON transcoder's flags allow reading it as JSON")
}

func TestRawStringRoundTrip(t *testing.T) {
	key := newKey(t)
	raw := gocb.NewRawStringTranscoder()
	must(collection.Insert(key, "not {json", &gocb.InsertOptions{Transcoder: raw}))(t)
	var got string
	ok(t, must(collection.Get(key, &gocb.GetOptions{Transcoder: raw}))(t).Content(&got))
	wantEqual(t, got, "not {json")
}

func TestRawBinaryRoundTrip(t *testing.T) {
	key := newKey(t)
	var everyByte []byte
	for n := range 256 {
		everyByte = append(everyByte, byte(n))
	}
	ok(t, upsertRaw(key, everyByte))
	wantEqual(t, rawContent(t, key), everyByte)
}

func TestLegacyTranscoderRoundTrip(t *testing.T) {
	key := newKey(t)
	legacy := gocb.NewLegacyTranscoder()
	must(collection.Upsert(key, []byte("\x80bytes"), &gocb.UpsertOptions{Transcoder: legacy}))(t)
	var got []byte
	ok(t, must(collection.Get(key, &gocb.GetOptions{Transcoder: legacy}))(t).Content(&got))
	wantEqual(t, string(got), "\x80bytes")
}

// The flags come back, so that a transcoder knows a document that is not its own.
func TestBinaryDocumentIsRefusedByTheStringTranscoder(t *testing.T) {
	key := newKey(t)
	ok(t, upsertRaw(key, []byte{0, 1}))
	var got string
	result := must(collection.Get(key, &gocb.GetOptions{Transcoder: gocb.NewRawStringTranscoder()}))(t)
	wantTrue(t, result.Content(&got) != nil, "the content is refused")
}

func TestValuesOf64KiB(t *testing.T) {
	for name, value := range map[string][]byte{
		"compressible":   bytes.Repeat([]byte("0123456789abcdef"), 4096),
		"incompressible": incompressible(t, 64*1024),
		"zeros":          make([]byte, 64*1024),
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey(t)
			ok(t, upsertRaw(key, value))
			wantTrue(t, bytes.Equal(rawContent(t, key), value), "the value comes back")
		})
	}
}

func TestCompressibleJSONOf64KiB(t *testing.T) {
	key := newKey(t)
	document := object{"text": strings.Repeat("stave ", 64*1024/6)}
	upsert(t, key, document)
	wantEqual(t, content[object](t, key), document)
}

func TestAppendToACompressedDocument(t *testing.T) {
	key := newKey(t)
	value := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	ok(t, upsertRaw(key, value))
	must(collection.Binary().Append(key, []byte("tail"), nil))(t)
	wantTrue(t, bytes.Equal(rawContent(t, key), append(value, "tail"...)), "the tail follows the value")
}

func TestUnicodeKeysAndValues(t *testing.T) {
	for _, text := range texts {
		key := newKey(t)
		upsert(t, key+text, object{text: text})
		wantEqual(t, content[object](t, key+text), object{text: text})
		wantTrue(t, !exists(t, key), "the key without its end is another one")
	}
}

func TestKeysThatDifferOnlyInNormalFormAreDifferent(t *testing.T) {
	key := newKey(t)
	upsert(t, key+"\u00e9", 1)
	upsert(t, key+"e\u0301", 2)
	wantEqual(t, content[int](t, key+"\u00e9"), 1)
	wantEqual(t, content[int](t, key+"e\u0301"), 2)
}
