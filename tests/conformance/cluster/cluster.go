// What an application sees through the Go SDK while nodes of its cluster fail: durable writes, and none of them lost.
//
// Every writer owns some documents and counts up in them; a number that was acknowledged must be there afterwards, or a
// higher one that was tried. The cluster is that of `stave dev`, whose control endpoint brings about the failures.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
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
}

// tally is what was seen in each phase, and the last number of each document that was tried and acknowledged.
type tally struct {
	mutex               sync.Mutex
	phases              []*phase
	tried, acknowledged map[string]int
	others              map[string]bool
	done                atomic.Bool
}

func (t *tally) begin(name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.phases = append(t.phases, &phase{name, map[string]int{}, 0, map[string]bool{}})
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
	sums, pause, sound := map[string]int{}, time.Duration(0), len(t.others) == 0
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
	time.Sleep(time.Second)
	goesOn := t.waitForAll()
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
	}
	t.done.Store(true)
	writers.Wait()
	lost := t.check(collection)
	must(cluster.Close(nil))
	if !t.report(lost) || len(lost) > 0 {
		os.Exit(1)
	}
}
