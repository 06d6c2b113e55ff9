// What an application sees through the Go SDK while nodes of its cluster fail: durable writes, and none of them lost.
//
// Every writer owns some documents and counts up in them; a number that was acknowledged must be there afterwards, or a
// higher one that was tried. Beside them one scans documents that do not change: a scan that ends without an error has
// each of them once, whichever nodes failed or gave vBuckets away meanwhile. The cluster is that of `stave dev`, whose
// control endpoint brings about the failures.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocb/v2"
)

const (
	writersALevel = 2
	keysAWriter   = 40
	timeout       = 2500 * time.Millisecond
	// How long writers may take until they go on after a failure: an SDK may wait seconds before it connects again.
	goOnWithin = 20 * time.Second
	// Documents that are scanned, over all vBuckets and nodes.
	scannedDocuments = 300
	// How long scans may fail after nodes did, until one has ended without an error.
	scanAgainWithin = 30 * time.Second
)

var levels = []gocb.DurabilityLevel{
	gocb.DurabilityLevelMajority,
	gocb.DurabilityLevelMajorityAndPersistOnMaster,
	gocb.DurabilityLevelPersistToMajority,
}

var columns = []string{"ok", "retried", "timeouts", "ambiguous", "cancelled", "impossible", "other"}

type phase struct {
	name    string
	counts  map[string]int
	pause   time.Duration
	writers map[string]bool
	// Scans that ended without an error, those that did since a wait for one began, and those that failed.
	whole, after, failed int
	// How often the SDK ended the process that scans.
	crashed int
}

// tally is what was seen in each phase, and the last number of each document that was tried and acknowledged.
type tally struct {
	mutex               sync.Mutex
	phases              []*phase
	tried, acknowledged map[string]int
	others              map[string]bool
	wrongScans          []string
	done                atomic.Bool
}

func (t *tally) begin(name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.phases = append(t.phases, &phase{name: name, counts: map[string]int{}, writers: map[string]bool{}})
}

func (t *tally) with(work func(now *phase)) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	work(t.phases[len(t.phases)-1])
}

// waitForAll waits until every writer has gone on; false if some did not.
func (t *tally) waitForAll() bool {
	t.with(func(phase *phase) { clear(phase.writers) })
	for deadline := time.Now().Add(goOnWithin); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		gone := 0
		t.with(func(phase *phase) { gone = len(phase.writers) })
		if gone == len(levels)*writersALevel {
			return true
		}
	}
	return false
}

// waitForAScan waits for a scan that begins now to end without an error; false if none did.
func (t *tally) waitForAScan() bool {
	t.with(func(phase *phase) { phase.after = 0 })
	for deadline := time.Now().Add(scanAgainWithin); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		after := 0
		t.with(func(phase *phase) { after = phase.after })
		// The first one may have begun before.
		if after >= 2 {
			return true
		}
	}
	return false
}

// storeForScans stores the documents that are scanned, and waits until they are saved: scans show what is saved.
func storeForScans(collection *gocb.Collection) {
	state := gocb.NewMutationState()
	for at := range scannedDocuments {
		written, err := collection.Upsert(fmt.Sprintf("scan:%d", at), map[string]int{"n": at}, nil)
		must(err)
		state.Add(*written.MutationToken())
	}
	options := &gocb.ScanOptions{IDsOnly: true, ConsistentWith: state, Timeout: 20 * time.Second}
	found, err := scanned(collection, options)
	must(err)
	if wrong := wrongIn(found); wrong != "" {
		must(errors.New(wrong))
	}
}

func scanned(collection *gocb.Collection, options *gocb.ScanOptions) ([]string, error) {
	result, err := collection.Scan(gocb.NewRangeScanForPrefix("scan:"), options)
	if err != nil {
		return nil, err
	}
	var found []string
	for item := result.Next(); item != nil; item = result.Next() {
		found = append(found, item.ID())
	}
	return found, result.Err()
}

// wrongIn tells what is wrong with the keys that a scan showed.
func wrongIn(found []string) string {
	times := map[string]int{}
	for _, key := range found {
		times[key]++
	}
	for at := range scannedDocuments {
		if key := fmt.Sprintf("scan:%d", at); times[key] != 1 {
			return fmt.Sprintf("a scan has %d of %d, and %s %d times", len(found), scannedDocuments, key, times[key])
		}
	}
	if len(found) != scannedDocuments {
		return fmt.Sprintf("a scan has %d of %d", len(found), scannedDocuments)
	}
	return ""
}

// knownPanics is where gocbcore 10.8.1 panics, in goroutines of its own, so that no application can recover: when a scan goes
// on while a connection is being made again, and when it begins while a vBucket has no active node in the map (-1). Scans are
// therefore made by a process of their own, which is started again.
var knownPanics = []string{"kvMux).GetByConnID", "vbucketMap.VbucketsByServer"}

// isKnownPanic tells whether the SDK ended a process as it is known to.
func isKnownPanic(said string) bool {
	for _, place := range knownPanics {
		if strings.Contains(said, place) {
			return true
		}
	}
	return false
}

// scanUntilEnd is that process: a line for each scan, with what is wrong with it, until the input ends.
func scanUntilEnd(collection *gocb.Collection) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		found, err := scanned(collection, &gocb.ScanOptions{IDsOnly: true, Timeout: 10 * time.Second})
		if err != nil {
			// A node failed, or a vBucket went to another one: the SDK says so.
			fmt.Println("failed")
			time.Sleep(20 * time.Millisecond)
		} else if wrong := wrongIn(found); wrong != "" {
			fmt.Println(wrong)
		} else {
			fmt.Println("whole")
		}
	}
}

// scan scans again and again; what a scan shows that ends without an error is each document once.
func (t *tally) scan() {
	for !t.done.Load() {
		var said strings.Builder
		scans := exec.Command(os.Args[0], "scan")
		scans.Stderr = &said
		input, err := scans.StdinPipe()
		must(err)
		output, err := scans.StdoutPipe()
		must(err)
		must(scans.Start())
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			t.note(lines.Text())
			if t.done.Load() {
				break
			}
		}
		_ = input.Close()
		if err := scans.Wait(); err != nil && !t.done.Load() {
			if isKnownPanic(said.String()) {
				t.with(func(phase *phase) { phase.crashed++ })
				continue
			}
			t.with(func(phase *phase) {
				t.wrongScans = append(t.wrongScans, fmt.Sprintf("%s: the scans ended: %s: %.500s", phase.name, err, said.String()))
			})
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// note counts a line of the process that scans.
func (t *tally) note(line string) {
	t.with(func(phase *phase) {
		if line == "failed" {
			phase.failed++
			return
		}
		phase.whole++
		phase.after++
		if line != "whole" {
			t.wrongScans = append(t.wrongScans, phase.name+": "+line)
		}
	})
}

// what names an error as an application would tell them apart.
func what(err error) string {
	switch {
	case errors.Is(err, gocb.ErrDurabilityImpossible):
		return "impossible"
	case errors.Is(err, gocb.ErrDurabilityAmbiguous):
		return "ambiguous"
	case errors.Is(err, gocb.ErrTimeout):
		return "timeouts"
	case errors.Is(err, gocb.ErrRequestCanceled), errors.Is(err, io.EOF):
		// Its connection broke: it may have been done.
		return "cancelled"
	}
	return "other"
}

// write writes one document after the other; one that is not acknowledged is written again until it is.
func (t *tally) write(collection *gocb.Collection, name string, level gocb.DurabilityLevel) {
	last := time.Now()
	for round := 1; !t.done.Load(); round++ {
		for at := 0; at < keysAWriter; at++ {
			key := fmt.Sprintf("go:%s:%d", name, at)
			t.with(func(*phase) { t.tried[key] = round })
			for !t.done.Load() {
				options := &gocb.UpsertOptions{DurabilityLevel: level, Timeout: timeout}
				_, err := collection.Upsert(key, map[string]int{"n": round}, options)
				if err == nil {
					now := time.Now()
					t.with(func(phase *phase) {
						t.acknowledged[key] = round
						phase.counts["ok"]++
						phase.writers[name] = true
						phase.pause = max(phase.pause, now.Sub(last))
					})
					last = now
					break
				}
				kind := what(err)
				t.with(func(phase *phase) {
					phase.counts[kind]++
					phase.counts["retried"]++
					if kind == "other" {
						t.others[fmt.Sprintf("%.200s", err)] = true
					}
				})
				if kind == "impossible" || kind == "other" {
					time.Sleep(20 * time.Millisecond)
				}
			}
		}
	}
}

type status struct {
	Nodes []struct {
		Status string `json:"status"`
	} `json:"nodes"`
}

// order has the control endpoint do something.
func order(method, path string) status {
	request, err := http.NewRequest(method, os.Getenv("STAVE_CONTROL")+"/v1/dev"+path, nil)
	must(err)
	client := http.Client{Timeout: time.Minute}
	answer, err := client.Do(request)
	must(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(err)
	if answer.StatusCode != http.StatusOK {
		must(fmt.Errorf("%s: %s", path, body))
	}
	var told status
	must(json.Unmarshal(body, &told))
	return told
}

func post(paths ...string) {
	for _, path := range paths {
		order(http.MethodPost, path)
	}
}

func freeze(node int) {
	post(fmt.Sprintf("/nodes/%d/freeze", node))
	for deadline := time.Now().Add(30 * time.Second); order(http.MethodGet, "").Nodes[node-1].Status != "failed_over"; {
		if time.Now().After(deadline) {
			must(fmt.Errorf("node %d was not failed over", node))
		}
		time.Sleep(50 * time.Millisecond)
	}
	post(fmt.Sprintf("/nodes/%d/thaw", node), fmt.Sprintf("/nodes/%d/recover", node))
}

// bringBack is for after a restart: on a busy machine a node may be away for so long that others take over from it.
func bringBack(node int) {
	if order(http.MethodGet, "").Nodes[node-1].Status == "failed_over" {
		post(fmt.Sprintf("/nodes/%d/recover", node))
	}
}

func restart(node int) {
	post(fmt.Sprintf("/nodes/%d/restart", node))
	bringBack(node)
}

func kill(node int) {
	post(fmt.Sprintf("/nodes/%d/kill", node), fmt.Sprintf("/nodes/%d/start", node))
	bringBack(node)
}

// check tells which documents do not have what was acknowledged.
func (t *tally) check(collection *gocb.Collection) []string {
	var lost []string
	for key, number := range t.acknowledged {
		var found struct {
			N int `json:"n"`
		}
		result, err := collection.Get(key, nil)
		if err == nil {
			err = result.Content(&found)
		}
		if err != nil || found.N < number || found.N > t.tried[key] {
			lost = append(lost, fmt.Sprintf("%s: acknowledged %d, found %d (%v)", key, number, found.N, err))
		}
	}
	return lost
}

// report prints what was seen; false if a writer did not go on after a failure, or there were unknown errors.
func (t *tally) report(lost []string) bool {
	fmt.Printf("%-10s", "phase")
	for _, column := range columns {
		fmt.Printf("%11s", column)
	}
	fmt.Println("   longest pause")
	sums, pause, sound := map[string]int{}, time.Duration(0), len(t.others)+len(t.wrongScans) == 0
	for _, phase := range t.phases {
		fmt.Printf("%-10s", phase.name)
		for _, column := range columns {
			fmt.Printf("%11d", phase.counts[column])
			sums[column] += phase.counts[column]
		}
		fmt.Printf("   %d ms\n", phase.pause.Milliseconds())
		pause = max(pause, phase.pause)
		if len(phase.writers) < len(levels)*writersALevel {
			fmt.Printf("only %d writers have gone on\n", len(phase.writers))
			sound = false
		}
	}
	for _, phase := range t.phases {
		fmt.Printf("scans %-10s %5d whole %5d failed %5d times the SDK panicked\n", phase.name, phase.whole, phase.failed, phase.crashed)
	}
	for _, line := range t.wrongScans[:min(10, len(t.wrongScans))] {
		fmt.Println(line)
	}
	for other := range t.others {
		fmt.Println(other)
	}
	for _, line := range lost[:min(10, len(lost))] {
		fmt.Println(line)
	}
	fmt.Print("summary")
	for _, column := range columns {
		fmt.Printf(" %s %d", column, sums[column])
	}
	fmt.Printf(" pause_ms %d documents %d lost %d\n", pause.Milliseconds(), len(t.acknowledged), len(lost))
	return sound
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func main() {
	cluster, err := gocb.Connect(os.Getenv("STAVE_CONN"), gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{
			Username: os.Getenv("STAVE_USER"), Password: os.Getenv("STAVE_PASSWORD"),
		},
	})
	must(err)
	bucket := cluster.Bucket(os.Getenv("STAVE_BUCKET"))
	must(bucket.WaitUntilReady(10*time.Second, &gocb.WaitUntilReadyOptions{
		ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue},
	}))
	collection := bucket.DefaultCollection()
	if len(os.Args) > 1 {
		scanUntilEnd(collection)
	}
	t := &tally{tried: map[string]int{}, acknowledged: map[string]int{}, others: map[string]bool{}}
	t.begin("steady")
	var writers sync.WaitGroup
	for _, level := range levels {
		for at := 0; at < writersALevel; at++ {
			writers.Add(1)
			go func() {
				defer writers.Done()
				t.write(collection, fmt.Sprintf("%d-%d", level, at), level)
			}()
		}
	}
	storeForScans(collection)
	writers.Add(1)
	go func() {
		defer writers.Done()
		t.scan()
	}()
	time.Sleep(time.Second)
	goesOn, scans := t.waitForAll(), true
	for _, failure := range []struct {
		name       string
		bringAbout func()
	}{
		{"failover", func() { post("/nodes/2/failover", "/nodes/2/recover") }},
		{"freeze", func() { freeze(3) }},
		{"restart", func() { restart(1) }},
		{"kill", func() { kill(2) }},
	} {
		if !goesOn {
			break
		}
		t.begin(failure.name)
		failure.bringAbout()
		time.Sleep(time.Second)
		goesOn = t.waitForAll()
		if scans && !t.waitForAScan() {
			scans = false
			fmt.Printf("no scan has ended without an error within %s after %s\n", scanAgainWithin, failure.name)
		}
	}
	t.done.Store(true)
	writers.Wait()
	lost := t.check(collection)
	must(cluster.Close(nil))
	if !t.report(lost) || len(lost) > 0 || !scans {
		os.Exit(1)
	}
}
