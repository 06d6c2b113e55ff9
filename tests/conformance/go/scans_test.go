package conformance

import (
	"fmt"
	"sort"
	"testing"

	"github.com/couchbase/gocb/v2"
)

// scanned holds documents with a prefix of their own, and what the server must have saved to show them all.
type scanned struct {
	prefix string
	keys   []string
	state  *gocb.MutationState
}

func storeForScans(t *testing.T) scanned {
	t.Helper()
	of := scanned{prefix: newKey(t) + ":", state: gocb.NewMutationState()}
	for n := range 60 {
		id := fmt.Sprintf("%s%02d", of.prefix, n)
		written, err := collection.Upsert(id, object{"n": n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		of.state.Add(*written.MutationToken())
		of.keys = append(of.keys, id)
	}
	return of
}

func (of scanned) options(more gocb.ScanOptions) *gocb.ScanOptions {
	more.ConsistentWith, more.Timeout = of.state, long
	return &more
}

// scan returns the keys that a scan shows, in order, and their numbers unless keys were asked for alone.
func (of scanned) scan(t *testing.T, what gocb.ScanType, more gocb.ScanOptions) ([]string, map[string]int) {
	t.Helper()
	result, err := collection.Scan(what, of.options(more))
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	numbers := map[string]int{}
	for item := result.Next(); item != nil; item = result.Next() {
		keys = append(keys, item.ID())
		if item.IDOnly() != more.IDsOnly {
			t.Fatalf("%s: keys only: %v", item.ID(), item.IDOnly())
		}
		if more.IDsOnly {
			continue
		}
		var document struct{ N int }
		if err := item.Content(&document); err != nil {
			t.Fatalf("%s: %v", item.ID(), err)
		}
		numbers[item.ID()] = document.N
	}
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	sort.Strings(keys)
	return keys, numbers
}

func same(t *testing.T, found, expected []string) {
	t.Helper()
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		t.Fatalf("found %v instead of %v", found, expected)
	}
}

func TestScanOfAPrefix(t *testing.T) {
	of := storeForScans(t)
	keys, numbers := of.scan(t, gocb.NewRangeScanForPrefix(of.prefix), gocb.ScanOptions{})
	same(t, keys, of.keys)
	for n, id := range of.keys {
		if numbers[id] != n {
			t.Fatalf("%s has %d instead of %d", id, numbers[id], n)
		}
	}
}

func TestScanOfKeysInSmallBatches(t *testing.T) {
	of := storeForScans(t)
	one := uint32(1)
	more := gocb.ScanOptions{IDsOnly: true, BatchItemLimit: &one, Concurrency: 4}
	keys, _ := of.scan(t, gocb.NewRangeScanForPrefix(of.prefix), more)
	same(t, keys, of.keys)
}

func TestScanWithExclusiveEnds(t *testing.T) {
	of := storeForScans(t)
	what := gocb.RangeScan{
		From: &gocb.ScanTerm{Term: of.prefix + "10", Exclusive: true},
		To:   &gocb.ScanTerm{Term: of.prefix + "20", Exclusive: true},
	}
	keys, _ := of.scan(t, what, gocb.ScanOptions{IDsOnly: true})
	same(t, keys, of.keys[11:20])
}

func TestSamplingScan(t *testing.T) {
	of := storeForScans(t)
	keys, _ := of.scan(t, gocb.SamplingScan{Limit: 7, Seed: 42}, gocb.ScanOptions{IDsOnly: true})
	if len(keys) > 7 {
		t.Fatalf("%d keys instead of 7 at most", len(keys))
	}
}
