package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10"
)

// copyOfPart is a copy of one collection or one scope, whose documents are called by collection and key.
type copyOfPart struct {
	*copyOf
	// is says whether a collection is part of it.
	is     func(collection uint32) bool
	events map[string]int
}

func newCopyOfPart(is func(collection uint32) bool) *copyOfPart {
	return &copyOfPart{copyOf: newCopy(""), is: is, events: map[string]int{}}
}

func (c *copyOfPart) named(collection uint32, key []byte) []byte {
	if !c.is(collection) {
		c.locked(func() {
			c.faults = append(c.faults, fmt.Sprintf("%s is of collection %x, which is not wanted", key, collection))
		})
	}
	return fmt.Appendf(nil, "%x/%s", collection, key)
}

func (c *copyOfPart) Mutation(m gocbcore.DcpMutation) {
	document := copied{value: bytes.Clone(m.Value), cas: gocbcore.Cas(m.Cas)}
	c.keep(m.VbID, m.SeqNo, c.named(m.CollectionID, m.Key), document)
}

func (c *copyOfPart) Deletion(d gocbcore.DcpDeletion) {
	c.keep(d.VbID, d.SeqNo, c.named(d.CollectionID, d.Key), copied{cas: gocbcore.Cas(d.Cas), deleted: true})
}

func (c *copyOfPart) count(kind string, vb uint16, seqno uint64) {
	c.locked(func() {
		c.advance(vb, seqno)
		c.events[kind]++
	})
}

func (c *copyOfPart) CreateCollection(e gocbcore.DcpCollectionCreation) {
	c.count("collection begins", e.VbID, e.SeqNo)
}

func (c *copyOfPart) DeleteCollection(e gocbcore.DcpCollectionDeletion) {
	c.count("collection ends", e.VbID, e.SeqNo)
}

func (c *copyOfPart) CreateScope(e gocbcore.DcpScopeCreation) {
	c.count("scope begins", e.VbID, e.SeqNo)
}
func (c *copyOfPart) DeleteScope(e gocbcore.DcpScopeDeletion) { c.count("scope ends", e.VbID, e.SeqNo) }

// idsOf asks the server for the ids of a scope and of its collections by name.
func idsOf(t *testing.T, scope string) (uint32, map[string]uint32) {
	t.Helper()
	var manifest struct {
		Scopes []struct {
			Name, UID   string
			Collections []struct{ Name, UID string }
		}
	}
	router := must(bucket.Internal().IORouter())(t)
	answers := make(chan error, 1)
	must(router.GetCollectionManifest(gocbcore.GetCollectionManifestOptions{},
		func(got *gocbcore.GetCollectionManifestResult, err error) {
			if err == nil {
				err = json.Unmarshal(got.Manifest, &manifest)
			}
			answers <- err
		}))(t)
	ok(t, <-answers)
	number := func(hex string) uint32 { return uint32(must(strconv.ParseUint(hex, 16, 32))(t)) }
	for _, one := range manifest.Scopes {
		if one.Name == scope {
			ids := map[string]uint32{}
			for _, collection := range one.Collections {
				ids[collection.Name] = number(collection.UID)
			}
			return number(one.UID), ids
		}
	}
	t.Fatalf("the manifest has no scope %s", scope)
	return 0, nil
}

// fill writes documents and takes some of them out again.
func fill(t *testing.T, of *gocb.Collection, round, documents int) {
	t.Helper()
	options := &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder()}
	for n := range documents {
		value := bytes.Repeat([]byte{byte(n + round)}, (n*7+round)%900)
		must(of.Upsert(fmt.Sprint("k", n), value, options))(t)
	}
	for n := round; n < documents; n += 5 {
		must(of.Remove(fmt.Sprint("k", n), nil))(t)
	}
}

// hasAll waits until everything of some collections has come.
func (c *copyOfPart) hasAll(t *testing.T, agent *gocbcore.DCPAgent, ids ...uint32) {
	t.Helper()
	for _, id := range ids {
		filter := &gocbcore.GetVbucketSeqnoFilterOptions{CollectionID: id}
		final := highSeqnosOf(t, agent, gocbcore.GetVbucketSeqnoOptions{FilterOptions: filter})
		c.waitFor(t, "everything of the collection arrives", func() bool {
			for vb, high := range final {
				if c.seen[vb] < high {
					return false
				}
			}
			return true
		})
	}
}

// samePart compares the copy of a collection with what the bucket says, document by document.
func (c *copyOfPart) samePart(t *testing.T, of *gocb.Collection, id uint32, documents int) int {
	t.Helper()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	there := 0
	for n := range documents {
		key := fmt.Sprint("k", n)
		document, known := c.documents[fmt.Sprintf("%x/%s", id, key)]
		got, err := of.Get(key, &gocb.GetOptions{Transcoder: gocb.NewRawBinaryTranscoder()})
		if errors.Is(err, gocb.ErrDocumentNotFound) {
			wantTrue(t, !known || document.deleted, key+" is in the copy only")
			continue
		}
		ok(t, err)
		var value []byte
		ok(t, got.Content(&value))
		wantTrue(t, known && !document.deleted, key+" is in the bucket only")
		wantEqual(t, document.value, value)
		wantEqual(t, uint64(document.cas), uint64(got.Cas()))
		there++
	}
	return there
}

// endsWith waits until every stream has ended because nothing is left that it is about.
func (c *copyOfPart) endsWith(t *testing.T, streams int, events map[string]int) {
	t.Helper()
	c.waitFor(t, "every stream ends", func() bool { return len(c.ended) == streams })
	for _, err := range c.ended {
		wantErr(t, err, gocbcore.ErrDCPStreamFilterEmpty)
	}
	wantEqual(t, c.events, events)
	t.Logf("dcp: %d streams ended, events: %v", streams, c.events)
}

func TestDcpOneCollection(t *testing.T) {
	const documents = 1500
	manager, scope := newScope(t)
	ok(t, manager.CreateCollection(scope, "one", nil, nil))
	ok(t, manager.CreateCollection(scope, "two", nil, nil))
	_, ids := idsOf(t, scope)
	one, two := bucket.Scope(scope).Collection("one"), bucket.Scope(scope).Collection("two")
	fill(t, one, 0, documents)
	fill(t, two, 0, documents/5)
	agent := dcpAgent(t)
	copied := newCopyOfPart(func(collection uint32) bool { return collection == ids["one"] })
	filter := &gocbcore.OpenStreamFilterOptions{CollectionIDs: []uint32{ids["one"]}}
	streams := 0
	for vb := range highSeqnos(t, agent) {
		openPart(t, agent, copied, vb, 0, ^uint64(0), filter)
		streams++
	}
	// Some of this comes from disk and some while it is written.
	fill(t, two, 1, documents/5)
	fill(t, one, 1, documents)
	copied.hasAll(t, agent, ids["one"])
	there := copied.samePart(t, one, ids["one"], documents)
	t.Logf("dcp: %d changes of one collection, %d documents in collection and copy, 0 differ", copied.changes, there)
	ok(t, manager.DropCollection(scope, "two", nil))
	ok(t, manager.DropCollection(scope, "one", nil))
	copied.endsWith(t, streams, map[string]int{"collection begins": streams, "collection ends": streams})
}

func TestDcpOneScope(t *testing.T) {
	const documents = 600
	manager, scope := newScope(t)
	ok(t, manager.CreateCollection(scope, "first", nil, nil))
	id, _ := idsOf(t, scope)
	first := bucket.Scope(scope).Collection("first")
	fill(t, first, 0, documents)
	fill(t, collection, 0, 20)
	agent := dcpAgent(t)
	known := map[uint32]bool{}
	copied := newCopyOfPart(func(collection uint32) bool { return collection != 0 })
	filter := &gocbcore.OpenStreamFilterOptions{ScopeID: id}
	streams := 0
	for vb := range highSeqnos(t, agent) {
		openPart(t, agent, copied, vb, 0, ^uint64(0), filter)
		streams++
	}
	// One that comes while it is followed belongs to it, too.
	ok(t, manager.CreateCollection(scope, "second", nil, nil))
	second := bucket.Scope(scope).Collection("second")
	ready := func() error {
		_, err := second.Exists("k0", &gocb.ExistsOptions{Timeout: long})
		return err
	}
	ok(t, ready())
	fill(t, second, 0, documents)
	fill(t, first, 1, documents)
	_, ids := idsOf(t, scope)
	there := 0
	for name, id := range ids {
		known[id] = true
		copied.hasAll(t, agent, id)
		there += copied.samePart(t, bucket.Scope(scope).Collection(name), id, documents)
	}
	wantEqual(t, len(known), 2)
	t.Logf("dcp: %d changes of a scope, %d documents in its collections and the copy, 0 differ", copied.changes, there)
	ok(t, manager.DropCollection(scope, "first", nil))
	ok(t, manager.DropScope(scope, nil))
	copied.endsWith(t, streams, map[string]int{
		"scope begins": streams, "collection begins": 2 * streams, "collection ends": 2 * streams, "scope ends": streams,
	})
}
