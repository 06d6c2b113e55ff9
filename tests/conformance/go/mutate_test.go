package conformance

import (
	"strings"
	"testing"

	"github.com/couchbase/gocb/v2"
)

func mutateDoc() object {
	return object{
		"name": "stave", "n": 10.0, "list": []any{1.0, 2.0, 3.0}, "dict": object{"a": 1.0},
		"objects": []any{object{"a": 1.0}},
	}
}

func mutate(key string, opts *gocb.MutateInOptions, specs ...gocb.MutateInSpec) (*gocb.MutateInResult, error) {
	return collection.MutateIn(key, specs, opts)
}

// Each case changes a fresh copy of the document and names the field that is different afterwards.
func TestMutateSpecs(t *testing.T) {
	several := &gocb.ArrayAppendSpecOptions{HasMultiple: true}
	for name, test := range map[string]struct {
		spec  gocb.MutateInSpec
		field string
		want  any
	}{
		"upsert new":       {gocb.UpsertSpec("new", object{"v": 1}, nil), "new", object{"v": 1.0}},
		"upsert existing":  {gocb.UpsertSpec("name", "oak", nil), "name", "oak"},
		"upsert parents":   {gocb.UpsertSpec("p.q", 1, &gocb.UpsertSpecOptions{CreatePath: true}), "p", object{"q": 1.0}},
		"insert new":       {gocb.InsertSpec("new", []int{1}, nil), "new", []any{1.0}},
		"insert parents":   {gocb.InsertSpec("p.q", 1, &gocb.InsertSpecOptions{CreatePath: true}), "p", object{"q": 1.0}},
		"replace field":    {gocb.ReplaceSpec("dict.a", "x", nil), "dict", object{"a": "x"}},
		"replace element":  {gocb.ReplaceSpec("list[1]", 9, nil), "list", []any{1.0, 9.0, 3.0}},
		"remove field":     {gocb.RemoveSpec("dict.a", nil), "dict", object{}},
		"remove last":      {gocb.RemoveSpec("list[-1]", nil), "list", []any{1.0, 2.0}},
		"append":           {gocb.ArrayAppendSpec("list", 4, nil), "list", []any{1.0, 2.0, 3.0, 4.0}},
		"append several":   {gocb.ArrayAppendSpec("list", []int{4, 5}, several), "list", []any{1.0, 2.0, 3.0, 4.0, 5.0}},
		"append parents":   {gocb.ArrayAppendSpec("p.q", 1, &gocb.ArrayAppendSpecOptions{CreatePath: true}), "p", object{"q": []any{1.0}}},
		"prepend":          {gocb.ArrayPrependSpec("list", 0, nil), "list", []any{0.0, 1.0, 2.0, 3.0}},
		"array insert":     {gocb.ArrayInsertSpec("list[1]", "x", nil), "list", []any{1.0, "x", 2.0, 3.0}},
		"array insert end": {gocb.ArrayInsertSpec("list[3]", 4, nil), "list", []any{1.0, 2.0, 3.0, 4.0}},
		"add unique":       {gocb.ArrayAddUniqueSpec("list", 4, nil), "list", []any{1.0, 2.0, 3.0, 4.0}},
		"increment":        {gocb.IncrementSpec("n", 5, nil), "n", 15.0},
		"decrement":        {gocb.DecrementSpec("n", 25, nil), "n", -15.0},
		"increment new":    {gocb.IncrementSpec("hits", 3, nil), "hits", 3.0},
		"counter parents":  {gocb.IncrementSpec("p.q", 3, &gocb.CounterSpecOptions{CreatePath: true}), "p", object{"q": 3.0}},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey(t)
			before := upsert(t, key, mutateDoc())
			result := must(mutate(key, nil, test.spec))(t)
			want := mutateDoc()
			want[test.field] = test.want
			wantEqual(t, content[object](t, key), want)
			wantTrue(t, result.Cas() != 0 && result.Cas() != before.Cas(), "the change has its own CAS")
			wantTrue(t, result.MutationToken().SequenceNumber() > before.MutationToken().SequenceNumber(), "seqno grows")
		})
	}
}

func TestMutateErrors(t *testing.T) {
	var nested any = 1
	for range 40 {
		nested = []any{nested}
	}
	deepPath := strings.Repeat("a.", 32) + "a"
	for name, test := range map[string]struct {
		spec gocb.MutateInSpec
		want error
	}{
		"upsert missing parent":  {gocb.UpsertSpec("p.q.r", 1, nil), gocb.ErrPathNotFound},
		"upsert below scalar":    {gocb.UpsertSpec("n.x", 1, nil), gocb.ErrPathMismatch},
		"upsert element":         {gocb.UpsertSpec("list[1]", 9, nil), gocb.ErrPathInvalid},
		"upsert bad path":        {gocb.UpsertSpec("dict..a", 9, nil), gocb.ErrPathInvalid},
		"upsert deep path":       {gocb.UpsertSpec(deepPath, 1, nil), gocb.ErrPathTooBig},
		"insert existing":        {gocb.InsertSpec("name", 1, nil), gocb.ErrPathExists},
		"replace missing":        {gocb.ReplaceSpec("absent", 1, nil), gocb.ErrPathNotFound},
		"remove missing":         {gocb.RemoveSpec("absent", nil), gocb.ErrPathNotFound},
		"append to text":         {gocb.ArrayAppendSpec("name", 1, nil), gocb.ErrPathMismatch},
		"append to nothing":      {gocb.ArrayAppendSpec("absent", 1, nil), gocb.ErrPathNotFound},
		"append too deep":        {gocb.ArrayAppendSpec("list", nested, nil), gocb.ErrValueTooDeep},
		"array insert beyond":    {gocb.ArrayInsertSpec("list[4]", 5, nil), gocb.ErrPathNotFound},
		"array insert no index":  {gocb.ArrayInsertSpec("list", 5, nil), gocb.ErrPathInvalid},
		"add unique member":      {gocb.ArrayAddUniqueSpec("list", 2, nil), gocb.ErrPathExists},
		"add unique object":      {gocb.ArrayAddUniqueSpec("list", object{"a": 1}, nil), gocb.ErrValueInvalid},
		"add unique to objects":  {gocb.ArrayAddUniqueSpec("objects", 1, nil), gocb.ErrPathMismatch},
		"increment text":         {gocb.IncrementSpec("name", 1, nil), gocb.ErrPathMismatch},
		"increment by zero":      {gocb.IncrementSpec("n", 0, nil), gocb.ErrDeltaInvalid},
		"increment past the end": {gocb.IncrementSpec("n", 1<<63-1, nil), gocb.ErrValueInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey(t)
			cas := upsert(t, key, mutateDoc()).Cas()
			_, err := mutate(key, nil, test.spec)
			wantErr(t, err, test.want)
			wantEqual(t, content[object](t, key), mutateDoc())
			wantEqual(t, must(collection.Get(key, nil))(t).Cas(), cas)
		})
	}
}

func TestMutateReplacesTheWholeDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, mutateDoc())
	must(mutate(key, nil, gocb.ReplaceSpec("", object{"all": "new"}, nil)))(t)
	wantEqual(t, content[object](t, key), object{"all": "new"})
}

func TestMutateRemovesTheWholeDocument(t *testing.T) {
	key := newKey(t)
	upsert(t, key, mutateDoc())
	must(mutate(key, nil, gocb.RemoveSpec("", nil)))(t)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestMutateResultsAreAtTheIndexOfTheirSpec(t *testing.T) {
	key := newKey(t)
	upsert(t, key, mutateDoc())
	result := must(mutate(key, nil, gocb.UpsertSpec("a", 1, nil), gocb.IncrementSpec("n", 1, nil),
		gocb.UpsertSpec("b", 2, nil), gocb.IncrementSpec("n", 1, nil)))(t)
	var first, second int
	ok(t, result.ContentAt(1, &first))
	ok(t, result.ContentAt(3, &second))
	wantEqual(t, []int{first, second}, []int{11, 12})
}

func TestMutateOneFailureUndoesEverything(t *testing.T) {
	key := newKey(t)
	upsert(t, key, mutateDoc())
	_, err := mutate(key, nil, gocb.UpsertSpec("new", 1, nil), gocb.RemoveSpec("name", nil),
		gocb.ReplaceSpec("absent", 1, nil))
	wantErr(t, err, gocb.ErrPathNotFound)
	wantEqual(t, content[object](t, key), mutateDoc())
}

func TestMutateOfADocumentThatIsNotJSON(t *testing.T) {
	key := newKey(t)
	ok(t, upsertRaw(key, []byte{0, 1}))
	_, err := mutate(key, nil, gocb.UpsertSpec("a", 1, nil))
	wantErr(t, err, gocb.ErrValueNotJSON)
}

func TestMutateOfAMissingDocument(t *testing.T) {
	_, err := mutate(newKey(t), nil, gocb.UpsertSpec("a", 1, nil))
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestMutateWithTheRightCas(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, object{}).Cas()
	must(mutate(key, &gocb.MutateInOptions{Cas: cas}, gocb.UpsertSpec("a", 1, nil)))(t)
	wantEqual(t, content[object](t, key), object{"a": 1.0})
}

func TestMutateWithAStaleCas(t *testing.T) {
	key := newKey(t)
	stale := upsert(t, key, object{}).Cas()
	upsert(t, key, object{"v": 2})
	_, err := mutate(key, &gocb.MutateInOptions{Cas: stale}, gocb.UpsertSpec("a", 1, nil))
	// For this one operation the SDK says "exists" where it says "CAS mismatch" elsewhere (its GOCBC-1019).
	wantErr(t, err, gocb.ErrDocumentExists)
	wantEqual(t, content[object](t, key), object{"v": 2.0})
}

func TestMutateStoreSemanticsUpsert(t *testing.T) {
	key := newKey(t)
	opts := &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsUpsert}
	must(mutate(key, opts, gocb.UpsertSpec("a", 1, nil)))(t)
	must(mutate(key, opts, gocb.UpsertSpec("b", 2, nil)))(t)
	wantEqual(t, content[object](t, key), object{"a": 1.0, "b": 2.0})
}

func TestMutateStoreSemanticsInsert(t *testing.T) {
	key := newKey(t)
	opts := &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsInsert}
	must(mutate(key, opts, gocb.InsertSpec("a", 1, nil)))(t)
	_, err := mutate(key, opts, gocb.InsertSpec("b", 1, nil))
	wantErr(t, err, gocb.ErrDocumentExists)
	wantEqual(t, content[object](t, key), object{"a": 1.0})
}

func TestMutateWithSixteenAndSeventeenSpecs(t *testing.T) {
	key := newKey(t)
	upsert(t, key, object{})
	var specs []gocb.MutateInSpec
	for n := range 16 {
		specs = append(specs, gocb.UpsertSpec("f"+string(rune('a'+n)), n, nil))
	}
	must(mutate(key, nil, specs...))(t)
	wantEqual(t, len(content[object](t, key)), 16)
	_, err := mutate(key, nil, append(specs, gocb.UpsertSpec("one-more", 1, nil))...)
	wantErr(t, err, gocb.ErrInvalidArgument)
}

func TestMutateOfACompressedDocument(t *testing.T) {
	key := newKey(t)
	pad := strings.Repeat("stave ", 10_000)
	upsert(t, key, object{"pad": pad, "n": 1})
	must(mutate(key, nil, gocb.IncrementSpec("n", 1, nil)))(t)
	wantEqual(t, content[object](t, key), object{"pad": pad, "n": 2.0})
}
