package conformance

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

func do(t *testing.T, ops []gocb.BulkOp) {
	t.Helper()
	ok(t, collection.Do(ops, &gocb.BulkOpOptions{Timeout: long}))
}

func TestBulkUpsertAndGet(t *testing.T) {
	key := newKey(t)
	const many = 500
	var writes, reads []gocb.BulkOp
	for n := range many {
		name := fmt.Sprintf("%s:%d", key, n)
		writes = append(writes, &gocb.UpsertOp{ID: name, Value: n})
		reads = append(reads, &gocb.GetOp{ID: name})
	}
	do(t, writes)
	do(t, reads)
	for n := range many {
		write, read := writes[n].(*gocb.UpsertOp), reads[n].(*gocb.GetOp)
		ok(t, write.Err)
		ok(t, read.Err)
		var got int
		ok(t, read.Result.Content(&got))
		wantEqual(t, got, n)
		wantEqual(t, read.Result.Cas(), write.Result.Cas())
	}
}

func TestBulkReportsEachError(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	get, absent := &gocb.GetOp{ID: key}, &gocb.GetOp{ID: key + ":absent"}
	insert := &gocb.InsertOp{ID: key, Value: 2}
	replace, remove := &gocb.ReplaceOp{ID: key + ":absent", Value: 2}, &gocb.RemoveOp{ID: key + ":absent"}
	stale := &gocb.ReplaceOp{ID: key, Value: 2, Cas: 1}
	do(t, []gocb.BulkOp{get, absent, insert, replace, remove, stale})
	ok(t, get.Err)
	wantErr(t, absent.Err, gocb.ErrDocumentNotFound)
	wantErr(t, insert.Err, gocb.ErrDocumentExists)
	wantErr(t, replace.Err, gocb.ErrDocumentNotFound)
	wantErr(t, remove.Err, gocb.ErrDocumentNotFound)
	wantErr(t, stale.Err, gocb.ErrCasMismatch)
	wantEqual(t, content[int](t, key), 1)
}

func TestBulkOfEveryKind(t *testing.T) {
	key := newKey(t)
	store(t, key+":text", "-")
	upsert(t, key+":touched", 1)
	upsert(t, key+":replaced", 1)
	upsert(t, key+":removed", 1)
	upsert(t, key+":got", 1)
	insert := &gocb.InsertOp{ID: key + ":inserted", Value: 1}
	replace := &gocb.ReplaceOp{ID: key + ":replaced", Value: 2}
	remove := &gocb.RemoveOp{ID: key + ":removed"}
	touch := &gocb.TouchOp{ID: key + ":touched", Expiry: hundred}
	getAndTouch := &gocb.GetAndTouchOp{ID: key + ":got", Expiry: hundred}
	appendOp := &gocb.AppendOp{ID: key + ":text", Value: "z"}
	up := &gocb.IncrementOp{ID: key + ":up", Initial: 5, Delta: 1}
	down := &gocb.DecrementOp{ID: key + ":down", Initial: 5, Delta: 1}
	do(t, []gocb.BulkOp{insert, replace, remove, touch, getAndTouch, appendOp, up, down})
	for _, err := range []error{
		insert.Err, replace.Err, remove.Err, touch.Err, getAndTouch.Err, appendOp.Err, up.Err, down.Err,
	} {
		ok(t, err)
	}
	prepend := &gocb.PrependOp{ID: key + ":text", Value: "a"}
	do(t, []gocb.BulkOp{prepend})
	ok(t, prepend.Err)
	wantEqual(t, content[int](t, key+":replaced"), 2)
	wantTrue(t, !exists(t, key+":removed"), "the document is gone")
	wantExpiresIn(t, key+":touched", hundred)
	wantExpiresIn(t, key+":got", hundred)
	wantEqual(t, string(rawContent(t, key+":text")), "a-z")
	wantEqual(t, up.Result.Content(), uint64(5))
	wantEqual(t, down.Result.Content(), uint64(5))
}

// Every increment is counted, from however many goroutines.
func TestConcurrentIncrements(t *testing.T) {
	key := newKey(t)
	const workers, each = 16, 50
	var group sync.WaitGroup
	failures := make(chan error, workers*each)
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for range each {
				_, err := collection.Binary().Increment(key, &gocb.IncrementOptions{Initial: 1, Delta: 1})
				if err != nil {
					failures <- err
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	wantEqual(t, content[int](t, key), workers*each)
}

// Of all writers with the same CAS exactly one succeeds.
func TestConcurrentReplacesWithOneCas(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, -1).Cas()
	const writers = 16
	results := make(chan error, writers)
	for n := range writers {
		go func() {
			_, err := collection.Replace(key, n, &gocb.ReplaceOptions{Cas: cas, Timeout: 10 * time.Second})
			results <- err
		}()
	}
	winners := 0
	for range writers {
		if err := <-results; err == nil {
			winners++
		} else {
			wantErr(t, err, gocb.ErrCasMismatch)
		}
	}
	wantEqual(t, winners, 1)
}
