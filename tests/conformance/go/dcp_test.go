package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const dcpDeadline = 60 * time.Second

// copied is a document as the stream brought it.
type copied struct {
	value   []byte
	cas     gocbcore.Cas
	deleted bool
}

// copyOf follows streams as a strict client would, and keeps the newest version of each document.
type copyOf struct {
	mutex     sync.Mutex
	prefix    string
	documents map[string]copied
	changes   int
	seen      map[uint16]uint64
	snapshots map[uint16]gocbcore.DcpSnapshotMarker
	ended     map[uint16]error
	faults    []string
	changed   chan struct{}
}

func newCopy(prefix string) *copyOf {
	return &copyOf{
		prefix:    prefix,
		documents: map[string]copied{},
		seen:      map[uint16]uint64{},
		snapshots: map[uint16]gocbcore.DcpSnapshotMarker{},
		ended:     map[uint16]error{},
		changed:   make(chan struct{}, 1),
	}
}

func (c *copyOf) locked(work func()) {
	c.mutex.Lock()
	work()
	c.mutex.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *copyOf) advance(vb uint16, seqno uint64) {
	snapshot, announced := c.snapshots[vb]
	if !announced || seqno < snapshot.StartSeqNo || seqno > snapshot.EndSeqNo {
		c.faults = append(c.faults, fmt.Sprintf("vBucket %d: seqno %d is outside of snapshot %v", vb, seqno, snapshot))
	}
	if seqno <= c.seen[vb] {
		c.faults = append(c.faults, fmt.Sprintf("vBucket %d: seqno %d after %d", vb, seqno, c.seen[vb]))
	}
	c.seen[vb] = seqno
}

func (c *copyOf) keep(vb uint16, seqno uint64, key []byte, document copied) {
	c.locked(func() {
		c.advance(vb, seqno)
		if strings.HasPrefix(string(key), c.prefix) {
			c.changes++
			c.documents[string(key)] = document
		}
	})
}

func (c *copyOf) SnapshotMarker(marker gocbcore.DcpSnapshotMarker) {
	c.locked(func() {
		if before, there := c.snapshots[marker.VbID]; there && marker.StartSeqNo <= before.EndSeqNo {
			c.faults = append(c.faults, fmt.Sprintf("vBucket %d: snapshot %v after %v", marker.VbID, marker, before))
		}
		c.snapshots[marker.VbID] = marker
	})
}

func (c *copyOf) Mutation(m gocbcore.DcpMutation) {
	value := bytes.Clone(m.Value)
	c.keep(m.VbID, m.SeqNo, m.Key, copied{value: value, cas: gocbcore.Cas(m.Cas)})
}

func (c *copyOf) Deletion(d gocbcore.DcpDeletion) {
	c.keep(d.VbID, d.SeqNo, d.Key, copied{cas: gocbcore.Cas(d.Cas), deleted: true})
}

func (c *copyOf) Expiration(e gocbcore.DcpExpiration) {
	c.keep(e.VbID, e.SeqNo, e.Key, copied{cas: gocbcore.Cas(e.Cas), deleted: true})
}

func (c *copyOf) End(end gocbcore.DcpStreamEnd, err error) {
	c.locked(func() { c.ended[end.VbID] = err })
}

func (c *copyOf) SeqNoAdvanced(advanced gocbcore.DcpSeqNoAdvanced) {
	c.event(advanced.VbID, advanced.SeqNo)
}

// event is what takes a seqno and is no document.
func (c *copyOf) event(vb uint16, seqno uint64) {
	c.locked(func() { c.advance(vb, seqno) })
}

func (c *copyOf) CreateCollection(e gocbcore.DcpCollectionCreation)     { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) DeleteCollection(e gocbcore.DcpCollectionDeletion)     { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) FlushCollection(e gocbcore.DcpCollectionFlush)         { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) CreateScope(e gocbcore.DcpScopeCreation)               { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) DeleteScope(e gocbcore.DcpScopeDeletion)               { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) ModifyCollection(e gocbcore.DcpCollectionModification) { c.event(e.VbID, e.SeqNo) }
func (c *copyOf) OSOSnapshot(gocbcore.DcpOSOSnapshot)                   {}

// waitFor waits until something is true of the copy.
func (c *copyOf) waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(dcpDeadline)
	for {
		c.mutex.Lock()
		done, faults := is(), c.faults
		c.mutex.Unlock()
		if len(faults) > 0 {
			t.Fatalf("the protocol was broken: %v", faults[:min(3, len(faults))])
		}
		if done {
			return
		}
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("not within %v: %s", dcpDeadline, what)
		}
	}
}

// dcpAgent is gocbcore's own client for streams.
func dcpAgent(t *testing.T) *gocbcore.DCPAgent {
	t.Helper()
	config := gocbcore.DCPAgentConfig{BucketName: os.Getenv("STAVE_BUCKET")}
	ok(t, config.FromConnStr(os.Getenv("STAVE_CONN")))
	config.IoConfig.UseCollections = true
	config.DCPConfig.UseExpiryOpcode = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{
		Username: os.Getenv("STAVE_USER"), Password: os.Getenv("STAVE_PASSWORD"),
	}
	flags := memd.DcpOpenFlagProducer | memd.DcpOpenFlagIncludeDeleteTimes
	agent := must(gocbcore.CreateDcpAgent(&config, newKey(t), flags))(t)
	t.Cleanup(func() { ok(t, agent.Close()) })
	answers := make(chan error, 1)
	must(agent.WaitUntilReady(time.Now().Add(long), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { answers <- err }))(t)
	ok(t, <-answers)
	return agent
}

func highSeqnos(t *testing.T, agent *gocbcore.DCPAgent) map[uint16]uint64 {
	t.Helper()
	return highSeqnosOf(t, agent, gocbcore.GetVbucketSeqnoOptions{})
}

func highSeqnosOf(t *testing.T, agent *gocbcore.DCPAgent, of gocbcore.GetVbucketSeqnoOptions) map[uint16]uint64 {
	t.Helper()
	seqnos := map[uint16]uint64{}
	for server := range must(must(agent.ConfigSnapshot())(t).NumServers())(t) {
		answers := make(chan error, 1)
		// The agent counts servers from 1; 0 is the one of vBucket 0.
		must(agent.GetVbucketSeqnos(server+1, memd.VbucketStateActive, of,
			func(entries []gocbcore.VbSeqNoEntry, err error) {
				for _, entry := range entries {
					seqnos[entry.VbID] = uint64(entry.SeqNo)
				}
				answers <- err
			}))(t)
		ok(t, <-answers)
	}
	return seqnos
}

func newestHistory(t *testing.T, agent *gocbcore.DCPAgent, vb uint16) gocbcore.VbUUID {
	t.Helper()
	var uuid gocbcore.VbUUID
	answers := make(chan error, 1)
	must(agent.GetFailoverLog(vb, func(entries []gocbcore.FailoverEntry, err error) {
		if err == nil {
			uuid = entries[0].VbUUID
		}
		answers <- err
	}))(t)
	ok(t, <-answers)
	return uuid
}

func openStream(t *testing.T, agent *gocbcore.DCPAgent, observer *copyOf, vb uint16, from, to uint64) {
	t.Helper()
	openPart(t, agent, observer, vb, from, to, nil)
}

// openPart streams what a filter leaves of a vBucket.
func openPart(t *testing.T, agent *gocbcore.DCPAgent, observer gocbcore.StreamObserver, vb uint16, from, to uint64,
	filter *gocbcore.OpenStreamFilterOptions) {
	t.Helper()
	var uuid gocbcore.VbUUID
	if from > 0 {
		uuid = newestHistory(t, agent, vb)
	}
	start := gocbcore.SeqNo(from)
	answers := make(chan error, 1)
	must(agent.OpenStream(vb, memd.DcpStreamAddFlagActiveOnly, uuid, start, gocbcore.SeqNo(to), start, start, observer,
		gocbcore.OpenStreamOptions{FilterOptions: filter}, func(_ []gocbcore.FailoverEntry, err error) { answers <- err }))(t)
	ok(t, <-answers)
}

// sameAsBucket compares the copy with what the bucket says, document by document.
func (c *copyOf) sameAsBucket(t *testing.T, keys []string) {
	t.Helper()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	there := 0
	for _, key := range keys {
		got, err := collection.Get(key, &gocb.GetOptions{Transcoder: gocb.NewRawBinaryTranscoder()})
		document, known := c.documents[key]
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
	t.Logf("dcp: %d changes received, %d documents in bucket and copy, 0 differ", c.changes, there)
}

func raw(t *testing.T, key string, value []byte) {
	t.Helper()
	must(collection.Upsert(key, value, &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder()}))(t)
}

func TestDcpFullCopy(t *testing.T) {
	prefix := newKey(t)
	var keys []string
	for n := range 3000 {
		key := fmt.Sprintf("%s:%d", prefix, n)
		keys = append(keys, key)
		raw(t, key, bytes.Repeat([]byte{byte(n)}, n%2000))
	}
	for n := 0; n < len(keys); n += 7 {
		must(collection.Remove(keys[n], nil))(t)
	}
	agent := dcpAgent(t)
	seqnos := highSeqnos(t, agent)
	observer := newCopy(prefix)
	streams := 0
	for vb, high := range seqnos {
		if high > 0 {
			openStream(t, agent, observer, vb, 0, high)
			streams++
		}
	}
	observer.waitFor(t, "every stream ends", func() bool { return len(observer.ended) == streams })
	for vb, err := range observer.ended {
		wantTrue(t, err == nil, fmt.Sprintf("stream %d ended with %v", vb, err))
		wantEqual(t, observer.seen[vb], seqnos[vb])
	}
	wantTrue(t, len(observer.documents) >= 3000-3000/7-1, "documents are there")
	observer.sameAsBucket(t, keys)
}

func TestDcpLiveTail(t *testing.T) {
	agent := dcpAgent(t)
	prefix := newKey(t)
	observer := newCopy(prefix)
	for vb, high := range highSeqnos(t, agent) {
		observer.seen[vb] = high
		openStream(t, agent, observer, vb, high, ^uint64(0))
	}
	var keys []string
	for n := range 200 {
		keys = append(keys, fmt.Sprintf("%s:%d", prefix, n))
	}
	var writers sync.WaitGroup
	faults := make(chan error, 4)
	for writer := range 4 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			random := rand.New(rand.NewPCG(uint64(writer), 1))
			options := &gocb.UpsertOptions{Transcoder: gocb.NewRawBinaryTranscoder()}
			for n := range 1500 {
				key := keys[random.IntN(len(keys))]
				var err error
				if random.IntN(5) == 0 {
					_, err = collection.Remove(key, nil)
				} else {
					_, err = collection.Upsert(key, []byte(fmt.Sprint(writer, n)), options)
				}
				if err != nil && !errors.Is(err, gocb.ErrDocumentNotFound) {
					faults <- err
					return
				}
			}
		}()
	}
	writers.Wait()
	select {
	case err := <-faults:
		t.Fatal(err)
	default:
	}
	final := highSeqnos(t, agent)
	observer.waitFor(t, "everything that was written arrives", func() bool {
		for vb, high := range final {
			if observer.seen[vb] < high {
				return false
			}
		}
		return true
	})
	wantEqual(t, len(observer.ended), 0)
	observer.sameAsBucket(t, keys)
}

func TestDcpClosesStreams(t *testing.T) {
	agent := dcpAgent(t)
	observer := newCopy("none")
	openStream(t, agent, observer, 0, 0, ^uint64(0))
	answers := make(chan error, 1)
	must(agent.CloseStream(0, gocbcore.CloseStreamOptions{}, func(err error) { answers <- err }))(t)
	ok(t, <-answers)
	observer.waitFor(t, "the stream ends", func() bool { return len(observer.ended) == 1 })
	wantErr(t, observer.ended[0], gocbcore.ErrDCPStreamClosed)
}
