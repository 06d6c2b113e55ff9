package conformance

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

// own connects to a bucket that only this test has.
func own(t *testing.T, name string) *gocb.Collection {
	t.Helper()
	// A connection of its own: it goes on looking for a bucket that was dropped.
	cluster := must(connect(os.Getenv("STAVE_USER"), os.Getenv("STAVE_PASSWORD")))(t)
	t.Cleanup(func() { cluster.Close(nil) })
	bucket := cluster.Bucket(name)
	ok(t, bucket.WaitUntilReady(long, &gocb.WaitUntilReadyOptions{
		ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue},
	}))
	return bucket.DefaultCollection()
}

// seqnos writes a document twice and answers how many seqnos that took for each time.
func seqnos(t *testing.T, documents *gocb.Collection) uint64 {
	t.Helper()
	first := must(documents.Upsert("k", 1, nil))(t).MutationToken()
	second := must(documents.Upsert("k", 2, nil))(t).MutationToken()
	return second.SequenceNumber() - first.SequenceNumber()
}

// A sync write takes a seqno for its prepare and one for its commit.
func TestLeastLevelOfABucket(t *testing.T) {
	for _, of := range []struct {
		level  gocb.DurabilityLevel
		seqnos uint64
	}{
		{gocb.DurabilityLevelNone, 1},
		{gocb.DurabilityLevelMajority, 2},
		{gocb.DurabilityLevelMajorityAndPersistOnMaster, 2},
		{gocb.DurabilityLevelPersistToMajority, 2},
	} {
		name := newBucket(t, gocb.BucketSettings{
			RAMQuotaMB:             100,
			BucketType:             gocb.CouchbaseBucketType,
			MinimumDurabilityLevel: of.level,
		}, nil)
		documents := own(t, name)
		wantEqual(t, seqnos(t, documents), of.seqnos)
		settings := must(cluster.Buckets().GetBucket(name, nil))(t)
		wantEqual(t, settings.MinimumDurabilityLevel, of.level)
	}
}

func TestLeastLevelOfABucketIsChanged(t *testing.T) {
	name := newBucket(t, gocb.BucketSettings{RAMQuotaMB: 100, BucketType: gocb.CouchbaseBucketType}, nil)
	documents := own(t, name)
	wantEqual(t, seqnos(t, documents), uint64(1))
	settings := must(cluster.Buckets().GetBucket(name, nil))(t)
	settings.MinimumDurabilityLevel = gocb.DurabilityLevelMajority
	ok(t, cluster.Buckets().UpdateBucket(*settings, nil))
	wantEqual(t, seqnos(t, documents), uint64(2))
}

func TestEphemeralBucketHasNoLevelWithDisk(t *testing.T) {
	documents := own(t, newBucket(t, gocb.BucketSettings{RAMQuotaMB: 100, BucketType: gocb.EphemeralBucketType}, nil))
	for _, level := range []gocb.DurabilityLevel{
		gocb.DurabilityLevelMajorityAndPersistOnMaster,
		gocb.DurabilityLevelPersistToMajority,
	} {
		_, err := documents.Upsert("k", 1, &gocb.UpsertOptions{DurabilityLevel: level, Timeout: long})
		wantErr(t, err, gocb.ErrDurabilityLevelNotAvailable)
	}
	majority := &gocb.UpsertOptions{DurabilityLevel: gocb.DurabilityLevelMajority, Timeout: long}
	must(documents.Upsert("k", 2, majority))(t)
	var found int
	ok(t, must(documents.Get("k", nil))(t).Content(&found))
	wantEqual(t, found, 2)
}

// plain speaks the protocol without an SDK.
type plain struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, bucket string) plain {
	t.Helper()
	address := strings.TrimPrefix(os.Getenv("STAVE_CONN"), "couchbase://")
	conn := must(net.DialTimeout("tcp", address, long))(t)
	t.Cleanup(func() { conn.Close() })
	ok(t, conn.SetDeadline(time.Now().Add(2*long)))
	p := plain{t, conn}
	p.ask(0x21, "PLAIN", "\x00"+os.Getenv("STAVE_USER")+"\x00"+os.Getenv("STAVE_PASSWORD"))
	p.ask(0x89, bucket, "")
	return p
}

// ask sends a request without extras, which must succeed.
func (p plain) ask(opcode byte, key, value string) {
	p.t.Helper()
	frame := make([]byte, 24, 24+len(key)+len(value))
	frame[0], frame[1] = 0x80, opcode
	binary.BigEndian.PutUint16(frame[2:], uint16(len(key)))
	binary.BigEndian.PutUint32(frame[8:], uint32(len(key)+len(value)))
	must(p.conn.Write(append(append(frame, key...), value...)))(p.t)
	answer := make([]byte, 24)
	must(io.ReadFull(p.conn, answer))(p.t)
	must(io.CopyN(io.Discard, p.conn, int64(binary.BigEndian.Uint32(answer[8:]))))(p.t)
	wantEqual(p.t, binary.BigEndian.Uint16(answer[6:]), uint16(0))
}

const (
	stopPersistence  = 0x80
	startPersistence = 0x81
)

func isSyncWriteInProgress(reason gocb.RetryReason) bool {
	return reason.Description() == gocb.KVSyncWriteInProgressRetryReason.Description()
}

// While nothing is written to disk, a write that waits for it is in the way of all others, and nobody reads it.
func TestSyncWriteInProgress(t *testing.T) {
	if hasReplicas() {
		t.Skip("the test stops the flusher of one node alone")
	}
	name := newBucket(t, gocb.BucketSettings{RAMQuotaMB: 100, BucketType: gocb.CouchbaseBucketType}, nil)
	first, second := own(t, name), own(t, name)
	must(first.Upsert("k", 1, nil))(t)
	admin := dial(t, name)
	admin.ask(stopPersistence, "", "")
	level := gocb.DurabilityLevelPersistToMajority
	done := make(chan error, 1)
	go func() {
		_, err := first.Upsert("k", 2, &gocb.UpsertOptions{DurabilityLevel: level, Timeout: 2 * long})
		done <- err
	}()
	// The SDK tries again until its timeout. Before the prepare nothing is in the way, and the document stays as it is.
	for deadline := time.Now().Add(long); ; {
		_, err := second.Upsert("k", 1, &gocb.UpsertOptions{Timeout: short})
		var timeout *gocb.TimeoutError
		if errors.As(err, &timeout) && slices.ContainsFunc(timeout.RetryReasons, isSyncWriteInProgress) {
			break
		}
		if timeout == nil {
			ok(t, err)
		}
		wantTrue(t, time.Now().Before(deadline), "the second client hears of the sync write")
	}
	var found int
	ok(t, must(second.Get("k", nil))(t).Content(&found))
	wantEqual(t, found, 1)
	admin.ask(startPersistence, "", "")
	ok(t, <-done)
	ok(t, must(second.Get("k", nil))(t).Content(&found))
	wantEqual(t, found, 2)
	must(second.Upsert("k", 4, nil))(t)
}
