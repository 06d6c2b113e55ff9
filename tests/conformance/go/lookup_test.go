package conformance

import (
	"strings"
	"testing"

	"github.com/couchbase/gocb/v2"
)

func lookupDoc() object {
	return object{
		"name": "stave", "n": 1.0, "list": []any{10.0, 20.0, []any{30.0, 31.0}},
		"dict": object{"a": object{"b": "deep"}, "x.y": "dotted"}, "null": nil, "empty": object{},
	}
}

func lookup(t *testing.T, key string, specs ...gocb.LookupInSpec) *gocb.LookupInResult {
	t.Helper()
	return must(collection.LookupIn(key, specs, nil))(t)
}

func at[T any](t *testing.T, result *gocb.LookupInResult, index uint) T {
	t.Helper()
	var value T
	ok(t, result.ContentAt(index, &value))
	return value
}

func TestLookupGet(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, lookupDoc()).Cas()
	result := lookup(t, key, gocb.GetSpec("name", nil))
	wantEqual(t, at[string](t, result, 0), "stave")
	wantEqual(t, result.Cas(), cas)
}

func TestLookupPaths(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	for path, want := range map[string]any{
		"dict.a.b": "deep", "dict.a": object{"b": "deep"}, "dict.`x.y`": "dotted", "list[0]": 10.0,
		"list[-1]": []any{30.0, 31.0}, "list[2][1]": 31.0, "null": nil, "empty": object{},
	} {
		t.Run(path, func(t *testing.T) {
			wantEqual(t, at[any](t, lookup(t, key, gocb.GetSpec(path, nil)), 0), want)
		})
	}
}

func TestLookupOfTheWholeDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	wantEqual(t, at[object](t, lookup(t, key, gocb.GetSpec("", nil)), 0), lookupDoc())
}

func TestLookupExists(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	result := lookup(t, key, gocb.ExistsSpec("dict.a", nil), gocb.ExistsSpec("null", nil),
		gocb.ExistsSpec("dict.z", nil))
	wantTrue(t, result.Exists(0), "an object exists")
	wantTrue(t, result.Exists(1), "a null exists")
	wantTrue(t, !result.Exists(2), "a missing path does not")
}

func TestLookupCount(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	result := lookup(t, key, gocb.CountSpec("list", nil), gocb.CountSpec("dict", nil),
		gocb.CountSpec("empty", nil), gocb.CountSpec("list[2]", nil), gocb.CountSpec("", nil))
	for index, want := range []int{3, 2, 0, 2, len(lookupDoc())} {
		wantEqual(t, at[int](t, result, uint(index)), want)
	}
}

func TestLookupEachPathHasItsOwnResult(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	result := lookup(t, key, gocb.GetSpec("name", nil), gocb.GetSpec("absent", nil), gocb.GetSpec("name.sub", nil),
		gocb.GetSpec("list[0", nil), gocb.ExistsSpec("n", nil), gocb.CountSpec("name", nil))
	wantEqual(t, at[string](t, result, 0), "stave")
	var ignored any
	wantErr(t, result.ContentAt(1, &ignored), gocb.ErrPathNotFound)
	wantErr(t, result.ContentAt(2, &ignored), gocb.ErrPathMismatch)
	wantErr(t, result.ContentAt(3, &ignored), gocb.ErrPathInvalid)
	wantTrue(t, result.Exists(4), "the path exists")
	wantErr(t, result.ContentAt(5, &ignored), gocb.ErrPathMismatch)
}

func TestLookupPathErrors(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	for path, want := range map[string]error{
		"list[3]": gocb.ErrPathNotFound, "dict.a.z": gocb.ErrPathNotFound, "absent.deeper": gocb.ErrPathNotFound,
		"list.name": gocb.ErrPathMismatch, "dict[0]": gocb.ErrPathMismatch, "n.sub": gocb.ErrPathMismatch,
		"list[": gocb.ErrPathInvalid, "list[x]": gocb.ErrPathInvalid, "dict..a": gocb.ErrPathInvalid,
		"list[-2]": gocb.ErrPathInvalid, `quo"te`: gocb.ErrPathInvalid,
		strings.Repeat("a.", 32) + "a": gocb.ErrPathTooBig,
	} {
		t.Run(path, func(t *testing.T) {
			var ignored any
			wantErr(t, lookup(t, key, gocb.GetSpec(path, nil)).ContentAt(0, &ignored), want)
		})
	}
}

func TestLookupPathLongerThan1024Bytes(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	_, err := collection.LookupIn(key, []gocb.LookupInSpec{gocb.GetSpec(strings.Repeat("a", 1025), nil)}, nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestLookupInADocumentThatIsNotJSON(t *testing.T) {
	key := newKey(t)
	ok(t, upsertRaw(key, []byte("\x00not json")))
	result := lookup(t, key, gocb.GetSpec("a", nil), gocb.CountSpec("a", nil))
	var ignored any
	wantErr(t, result.ContentAt(0, &ignored), gocb.ErrValueNotJSON)
	wantErr(t, result.ContentAt(1, &ignored), gocb.ErrValueNotJSON)
}

func TestLookupInADocumentThatIsNestedTooDeeply(t *testing.T) {
	key := newKey(t)
	var document any = 1
	for range 40 {
		document = object{"a": document}
	}
	upsert(t, key, document)
	var ignored any
	wantErr(t, lookup(t, key, gocb.GetSpec("a.a", nil)).ContentAt(0, &ignored), gocb.ErrPathTooDeep)
}

func TestLookupInAMissingDocument(t *testing.T) {
	_, err := collection.LookupIn(newKey(t), []gocb.LookupInSpec{gocb.GetSpec("a", nil)}, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestLookupInARemovedDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	must(collection.Remove(key, nil))(t)
	_, err := collection.LookupIn(key, []gocb.LookupInSpec{gocb.GetSpec("name", nil)}, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestLookupOfSixteenPaths(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	specs := make([]gocb.LookupInSpec, 16)
	for n := range specs {
		specs[n] = gocb.GetSpec("n", nil)
	}
	result := lookup(t, key, specs...)
	for n := range specs {
		wantEqual(t, at[int](t, result, uint(n)), 1)
	}
	_, err := collection.LookupIn(key, append(specs, gocb.GetSpec("n", nil)), nil)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestLookupInACompressedDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, object{"pad": strings.Repeat("stave ", 10_000), "last": 42})
	wantEqual(t, at[int](t, lookup(t, key, gocb.GetSpec("last", nil)), 0), 42)
}
