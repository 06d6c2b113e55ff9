// Durable writes and reads through the Go SDK while somebody breaks the cluster; every operation is written down.
//
// It works until its standard input ends, then reads every document once more, and ends.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/couchbase/gocb/v2"
)

var (
	connect  = flag.String("connect", "", "connection string")
	user     = flag.String("user", "", "user")
	password = flag.String("password", "", "password")
	bucket   = flag.String("bucket", "", "bucket")
	path     = flag.String("history", "", "the file that every operation is written to")
	seed     = flag.Int64("seed", 1, "decides who asks what; the machine decides the rest")
	workers  = flag.Int("workers", 48, "clients that work at once")
	clusters = flag.Int("clusters", 3, "connections of the SDK that they share")
	pause    = flag.Duration("pause", 40*time.Millisecond, "between two operations of a worker, about")
)

const (
	registers = 24
	counters  = 9
	sets      = 9
	// Elements of a set, before the next one is begun in its place.
	setSize      = 150
	readyWithin  = 60 * time.Second
	finalWithin  = 60 * time.Second
	progressEach = time.Second
)

// shared is what all workers know.
type shared struct {
	unique atomic.Uint64
	// How many elements were tried for each set, all generations counted.
	added    [sets]atomic.Uint64
	mutex    sync.Mutex
	inserted []string
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	history, err := newHistory(*path)
	if err != nil {
		return err
	}
	collections, err := connectAll()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	all := &shared{}
	stop := make(chan struct{})
	failed := make(chan error, *workers)
	var working sync.WaitGroup
	for process := range *workers {
		c := &client{
			process: process, collection: collections[process%len(collections)], history: history,
			seen: map[string]gocb.Cas{},
		}
		random := rand.New(rand.NewSource(*seed*1_000 + int64(process)))
		working.Add(1)
		go func() {
			defer working.Done()
			if err := work(c, random, all, stop); err != nil {
				failed <- err
			}
		}()
	}
	ended := make(chan struct{})
	go progress(history, ended)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	close(stop)
	working.Wait()
	select {
	case err := <-failed:
		return errors.Join(err, history.close())
	default:
	}
	// What is there in the end is asked over connections that have seen nothing.
	if collections, err = connectAll(); err == nil {
		err = readAll(collections, history, all)
	}
	close(ended)
	return errors.Join(err, history.close())
}

func connectAll() ([]*gocb.Collection, error) {
	var collections []*gocb.Collection
	for range *clusters {
		cluster, err := gocb.Connect(*connect, gocb.ClusterOptions{
			Authenticator: gocb.PasswordAuthenticator{Username: *user, Password: *password},
			// Every operation shall be tried.
			CircuitBreakerConfig: gocb.CircuitBreakerConfig{Disabled: true},
		})
		if err != nil {
			return nil, err
		}
		of := cluster.Bucket(*bucket)
		kv := &gocb.WaitUntilReadyOptions{ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue}}
		if err := of.WaitUntilReady(readyWithin, kv); err != nil {
			return nil, err
		}
		collections = append(collections, of.DefaultCollection())
	}
	return collections, nil
}

func progress(history *history, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(progressEach):
			fmt.Println("progress", history.done[0].Load(), history.done[1].Load(), history.done[2].Load())
		}
	}
}

// work runs operations until it is told to stop.
func work(c *client, random *rand.Rand, all *shared, stop <-chan struct{}) error {
	for {
		if err := one(c, random, all); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(*pause/2 + time.Duration(random.Int63n(int64(*pause)))):
		}
	}
}

// one runs one operation.
func one(c *client, random *rand.Rand, all *shared) error {
	switch kind := random.Intn(100); {
	case kind < 50:
		at := random.Intn(registers)
		key := fmt.Sprintf("register-%d", at)
		switch how := random.Intn(100); {
		case how < 40:
			_, err := c.read("read", key, number)
			return err
		case how < 70:
			return c.write(key, at%len(levels), all.unique.Add(1))
		default:
			if _, err := c.read("read", key, number); err != nil || c.seen[key] == 0 {
				return err
			}
			return c.replace(key, at%len(levels), all.unique.Add(1))
		}
	case kind < 68:
		at := random.Intn(counters)
		key := fmt.Sprintf("counter-%d", at)
		if random.Intn(100) < 30 {
			_, err := c.read("read", key, number)
			return err
		}
		return c.increment(key, at%len(levels))
	case kind < 86:
		at := random.Intn(sets)
		if random.Intn(100) < 30 {
			_, err := c.read("read", setKey(at, all.added[at].Load()), elements)
			return err
		}
		element := all.added[at].Add(1) - 1
		return c.addToSet(setKey(at, element), at%len(levels), element)
	default:
		unique := all.unique.Add(1)
		key := fmt.Sprintf("document-%d", unique)
		all.mutex.Lock()
		all.inserted = append(all.inserted, key)
		all.mutex.Unlock()
		return c.insert(key, int(unique%uint64(len(levels))), unique)
	}
}

func setKey(at int, element uint64) string {
	return fmt.Sprintf("set-%d-%d", at, element/setSize)
}

// readAll reads every document once more, and again until it is answered.
func readAll(collections []*gocb.Collection, history *history, all *shared) error {
	type task struct {
		key   string
		parse func([]byte) ([]uint64, error)
	}
	var tasks []task
	for at := range registers {
		tasks = append(tasks, task{fmt.Sprintf("register-%d", at), number})
	}
	for at := range counters {
		tasks = append(tasks, task{fmt.Sprintf("counter-%d", at), number})
	}
	for at := range sets {
		for first := uint64(0); first < all.added[at].Load(); first += setSize {
			tasks = append(tasks, task{setKey(at, first), elements})
		}
	}
	for _, key := range all.inserted {
		tasks = append(tasks, task{key, number})
	}
	left := make(chan task, len(tasks))
	for _, task := range tasks {
		left <- task
	}
	close(left)
	deadline := time.Now().Add(finalWithin)
	failed := make(chan error, *workers)
	var reading sync.WaitGroup
	for process := range *workers {
		c := &client{
			process: *workers + process, collection: collections[process%len(collections)], history: history,
			seen: map[string]gocb.Cas{},
		}
		reading.Add(1)
		go func() {
			defer reading.Done()
			for task := range left {
				for {
					done, err := c.read("final", task.key, task.parse)
					if err == nil && !done && time.Now().After(deadline) {
						err = fmt.Errorf("%s cannot be read in the end", task.key)
					}
					if err != nil {
						failed <- err
						return
					}
					if done {
						break
					}
				}
			}
		}()
	}
	reading.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
