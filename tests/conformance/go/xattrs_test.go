package conformance

import (
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

var (
	getXattr    = &gocb.GetSpecOptions{IsXattr: true}
	upsertXattr = &gocb.UpsertSpecOptions{IsXattr: true}
	deleted     = func() *gocb.LookupInOptions {
		opts := &gocb.LookupInOptions{}
		opts.Internal.DocFlags = gocb.SubdocDocFlagAccessDeleted
		return opts
	}()
)

const plainDoc = `{"v":1}`

func upsertPlain(t *testing.T, key string) *gocb.MutationResult {
	t.Helper()
	opts := &gocb.UpsertOptions{Transcoder: gocb.NewRawJSONTranscoder()}
	return must(collection.Upsert(key, plainDoc, opts))(t)
}

func xattr[T any](t *testing.T, key, path string) T {
	t.Helper()
	return at[T](t, lookup(t, key, gocb.GetSpec(path, getXattr)), 0)
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	return must(strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64))(t)
}

// macroCas reads what ${Mutation.CAS} expands to, whose bytes are in the opposite order.
func macroCas(t *testing.T, text string) uint64 {
	t.Helper()
	raw := must(hex.DecodeString(strings.TrimPrefix(text, "0x")))(t)
	slices.Reverse(raw)
	return number(t, hex.EncodeToString(raw))
}

func TestXattrUpsertAndGet(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("meta", object{"a": 1}, upsertXattr)))(t)
	wantEqual(t, xattr[object](t, key, "meta"), object{"a": 1.0})
	wantEqual(t, xattr[int](t, key, "meta.a"), 1)
	wantEqual(t, content[object](t, key), object{"v": 1.0})
}

func TestXattrMissing(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	var ignored any
	result := lookup(t, key, gocb.GetSpec("meta", getXattr))
	wantErr(t, result.ContentAt(0, &ignored), gocb.ErrPathNotFound)
}

func TestXattrInsertOfAnExistingOne(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	spec := gocb.InsertSpec("meta", 1, &gocb.InsertSpecOptions{IsXattr: true})
	must(mutate(key, nil, spec))(t)
	_, err := mutate(key, nil, spec)
	wantErr(t, err, gocb.ErrPathExists)
}

func TestXattrOperations(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("meta", object{"a": 1, "b": 2, "l": []int{2}, "n": 1}, upsertXattr)))(t)
	must(mutate(key, nil,
		gocb.ReplaceSpec("meta.a", 9, &gocb.ReplaceSpecOptions{IsXattr: true}),
		gocb.RemoveSpec("meta.b", &gocb.RemoveSpecOptions{IsXattr: true}),
		gocb.ArrayAppendSpec("meta.l", 4, &gocb.ArrayAppendSpecOptions{IsXattr: true}),
		gocb.ArrayPrependSpec("meta.l", 1, &gocb.ArrayPrependSpecOptions{IsXattr: true}),
		gocb.ArrayInsertSpec("meta.l[2]", 3, &gocb.ArrayInsertSpecOptions{IsXattr: true}),
		gocb.ArrayAddUniqueSpec("meta.l", 5, &gocb.ArrayAddUniqueSpecOptions{IsXattr: true}),
		gocb.IncrementSpec("meta.n", 4, &gocb.CounterSpecOptions{IsXattr: true}),
		gocb.UpsertSpec("meta.p.q", 7, &gocb.UpsertSpecOptions{IsXattr: true, CreatePath: true}),
	))(t)
	wantEqual(t, xattr[object](t, key, "meta"), object{
		"a": 9.0, "l": []any{1.0, 2.0, 3.0, 4.0, 5.0}, "n": 5.0, "p": object{"q": 7.0},
	})
}

func TestXattrAndBodyInAnyOrder(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("v", 2, nil), gocb.UpsertSpec("meta", "x", upsertXattr)))(t)
	result := lookup(t, key, gocb.GetSpec("v", nil), gocb.GetSpec("meta", getXattr))
	wantEqual(t, at[int](t, result, 0), 2)
	wantEqual(t, at[string](t, result, 1), "x")
}

func TestXattrTwoKeysInOneCall(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	_, err := mutate(key, nil, gocb.UpsertSpec("one", 1, upsertXattr), gocb.UpsertSpec("two", 2, upsertXattr))
	// The SDK does not map this status to its ErrXattrInvalidKeyCombo.
	var refused *gocb.KeyValueError
	wantTrue(t, errors.As(err, &refused), "the server refused the call")
	wantEqual(t, uint16(refused.StatusCode), uint16(0xcf))
}

func TestXattrsSurviveUpsertAndReplace(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("meta", 1, upsertXattr)))(t)
	upsert(t, key, object{"v": 2})
	must(collection.Replace(key, object{"v": 3}, nil))(t)
	wantEqual(t, xattr[int](t, key, "meta"), 1)
}

func TestXattrMacros(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	create := &gocb.UpsertSpecOptions{IsXattr: true, CreatePath: true}
	result := must(mutate(key, nil,
		gocb.UpsertSpec("meta.cas", gocb.MutationMacroCAS, create),
		gocb.UpsertSpec("meta.seqno", gocb.MutationMacroSeqNo, create),
		gocb.UpsertSpec("meta.crc", gocb.MutationMacroValueCRC32c, create),
	))(t)
	wantEqual(t, macroCas(t, xattr[string](t, key, "meta.cas")), uint64(result.Cas()))
	wantEqual(t, number(t, xattr[string](t, key, "meta.seqno")), result.MutationToken().SequenceNumber())
	crc := crc32.Checksum([]byte(plainDoc), crc32.MakeTable(crc32.Castagnoli))
	wantEqual(t, number(t, xattr[string](t, key, "meta.crc")), uint64(crc))
}

func TestXattrMacroTextWithoutExpansion(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("meta", "${Mutation.CAS}", upsertXattr)))(t)
	wantEqual(t, xattr[string](t, key, "meta"), "${Mutation.CAS}")
}

func TestDocumentAttributes(t *testing.T) {
	key := newKey(t)
	opts := &gocb.UpsertOptions{Transcoder: gocb.NewRawJSONTranscoder(), Expiry: hundred}
	written := must(collection.Upsert(key, plainDoc, opts))(t)
	document := xattr[struct {
		Cas         string   `json:"CAS"`
		Seqno       string   `json:"seqno"`
		VbucketUUID string   `json:"vbucket_uuid"`
		Crc         string   `json:"value_crc32c"`
		ValueBytes  int      `json:"value_bytes"`
		Exptime     int64    `json:"exptime"`
		Deleted     bool     `json:"deleted"`
		Datatype    []string `json:"datatype"`
		RevID       string   `json:"revid"`
		Modified    string   `json:"last_modified"`
	}](t, key, "$document")
	wantEqual(t, number(t, document.Cas), uint64(written.Cas()))
	wantEqual(t, number(t, document.Seqno), written.MutationToken().SequenceNumber())
	wantEqual(t, number(t, document.VbucketUUID), written.MutationToken().PartitionUUID())
	wantEqual(t, number(t, document.Crc), uint64(crc32.Checksum([]byte(plainDoc), crc32.MakeTable(crc32.Castagnoli))))
	wantEqual(t, document.ValueBytes, len(plainDoc))
	wantTrue(t, time.Until(time.Unix(document.Exptime, 0)) > hundred-4*time.Second, "the expiry is in the future")
	wantTrue(t, !document.Deleted, "the document is alive")
	wantTrue(t, slices.Contains(document.Datatype, "json"), "the document is JSON")
	wantTrue(t, document.RevID != "" && document.Modified != "", "revid and last_modified are set")
}

func TestVirtualAttributeIsReadOnly(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	_, err := mutate(key, nil, gocb.UpsertSpec("$document.x", 1, upsertXattr))
	wantErr(t, err, gocb.ErrXattrCannotModifyVirtualAttribute)
}

func TestUnknownVirtualAttribute(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	result, err := collection.LookupIn(key, []gocb.LookupInSpec{gocb.GetSpec("$absent", getXattr)}, nil)
	if err == nil {
		// The server may refuse the call or only the path.
		var ignored any
		err = result.ContentAt(0, &ignored)
	}
	wantErr(t, err, gocb.ErrXattrUnknownVirtualAttribute)
}

func TestSystemXattrOfARemovedDocument(t *testing.T) {
	key := newKey(t)
	upsertPlain(t, key)
	must(mutate(key, nil, gocb.UpsertSpec("meta", "lost", upsertXattr)))(t)
	must(mutate(key, nil, gocb.UpsertSpec("_sys", "kept", upsertXattr)))(t)
	must(collection.Remove(key, nil))(t)
	system := []gocb.LookupInSpec{gocb.GetSpec("_sys", getXattr)}
	_, err := collection.LookupIn(key, system, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
	wantEqual(t, at[string](t, must(collection.LookupIn(key, system, deleted))(t), 0), "kept")
	user := must(collection.LookupIn(key, []gocb.LookupInSpec{gocb.GetSpec("meta", getXattr)}, deleted))(t)
	var ignored any
	wantErr(t, user.ContentAt(0, &ignored), gocb.ErrPathNotFound)
}

func TestDocumentCreatedAsDeleted(t *testing.T) {
	key := newKey(t)
	opts := &gocb.MutateInOptions{StoreSemantic: gocb.StoreSemanticsInsert}
	opts.Internal.DocFlags = gocb.SubdocDocFlagCreateAsDeleted | gocb.SubdocDocFlagAccessDeleted
	must(mutate(key, opts, gocb.UpsertSpec("txn", object{"id": "x"}, upsertXattr)))(t)
	wantTrue(t, !exists(t, key), "the document is a tombstone")
	specs := []gocb.LookupInSpec{gocb.GetSpec("txn.id", getXattr)}
	wantEqual(t, at[string](t, must(collection.LookupIn(key, specs, deleted))(t), 0), "x")
	must(collection.Insert(key, 1, nil))(t)
	wantEqual(t, content[int](t, key), 1)
}
