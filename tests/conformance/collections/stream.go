// Follows one collection of a bucket by DCP, from its first change until it is dropped, and keeps a copy of it.
//
//	stream SCOPE COLLECTION
//
// It prints "ready" when it follows. For each line that it reads it waits until it has all that was written, and prints its
// copy as one line of JSON. When the collection is gone it prints how its streams ended, and ends itself.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const patience = 30 * time.Second

// part is the copy, and what the streams brought beside documents.
type part struct {
	mutex     sync.Mutex
	changed   *sync.Cond
	id        uint32
	documents map[string]json.RawMessage
	changes   int
	events    int
	strangers int
	seen      map[uint16]uint64
	ended     map[string]int
	streams   int
}

func newPart(id uint32) *part {
	p := &part{id: id, documents: map[string]json.RawMessage{}, seen: map[uint16]uint64{}, ended: map[string]int{}}
	p.changed = sync.NewCond(&p.mutex)
	return p
}

// note takes something that has a seqno of its own.
func (p *part) note(vb uint16, seqno uint64, work func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.seen[vb] = seqno
	work()
	p.changed.Broadcast()
}

func (p *part) document(vb uint16, seqno uint64, collection uint32, key string, value []byte) {
	p.note(vb, seqno, func() {
		p.changes++
		switch {
		case collection != p.id:
			p.strangers++
		case value == nil:
			delete(p.documents, key)
		default:
			p.documents[key] = append(json.RawMessage{}, value...)
		}
	})
}

func (p *part) event(vb uint16, seqno uint64) { p.note(vb, seqno, func() { p.events++ }) }

func (p *part) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}
func (p *part) OSOSnapshot(gocbcore.DcpOSOSnapshot)       {}
func (p *part) Mutation(m gocbcore.DcpMutation) {
	p.document(m.VbID, m.SeqNo, m.CollectionID, string(m.Key), m.Value)
}
func (p *part) Deletion(d gocbcore.DcpDeletion) {
	p.document(d.VbID, d.SeqNo, d.CollectionID, string(d.Key), nil)
}
func (p *part) Expiration(e gocbcore.DcpExpiration) {
	p.document(e.VbID, e.SeqNo, e.CollectionID, string(e.Key), nil)
}
func (p *part) SeqNoAdvanced(a gocbcore.DcpSeqNoAdvanced)             { p.note(a.VbID, a.SeqNo, func() {}) }
func (p *part) CreateCollection(e gocbcore.DcpCollectionCreation)     { p.event(e.VbID, e.SeqNo) }
func (p *part) DeleteCollection(e gocbcore.DcpCollectionDeletion)     { p.event(e.VbID, e.SeqNo) }
func (p *part) FlushCollection(e gocbcore.DcpCollectionFlush)         { p.event(e.VbID, e.SeqNo) }
func (p *part) CreateScope(e gocbcore.DcpScopeCreation)               { p.event(e.VbID, e.SeqNo) }
func (p *part) DeleteScope(e gocbcore.DcpScopeDeletion)               { p.event(e.VbID, e.SeqNo) }
func (p *part) ModifyCollection(e gocbcore.DcpCollectionModification) { p.event(e.VbID, e.SeqNo) }

func (p *part) End(_ gocbcore.DcpStreamEnd, err error) {
	how := "ended"
	switch {
	case errors.Is(err, gocbcore.ErrDCPStreamFilterEmpty):
		how = "nothing left to follow"
	case err != nil:
		how = err.Error()
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.ended[how]++
	p.streams--
	p.changed.Broadcast()
}

// wait waits until something is so.
func (p *part) wait(is func() bool) {
	timer := time.AfterFunc(patience, func() { must(fmt.Errorf("what was written did not come within %v", patience)) })
	defer timer.Stop()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for !is() {
		p.changed.Wait()
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// await is for calls that answer later.
func await(ask func(answer func(error)) error) {
	answers := make(chan error, 1)
	must(ask(func(err error) { answers <- err }))
	must(<-answers)
}

// idOf asks the server for a collection's id.
func idOf(scope, collection string) uint32 {
	cluster, err := gocb.Connect(os.Getenv("STAVE_CONN"), gocb.ClusterOptions{Authenticator: gocb.PasswordAuthenticator{
		Username: os.Getenv("STAVE_USER"), Password: os.Getenv("STAVE_PASSWORD"),
	}})
	must(err)
	defer func() { must(cluster.Close(nil)) }()
	bucket := cluster.Bucket(os.Getenv("STAVE_BUCKET"))
	kv := []gocb.ServiceType{gocb.ServiceTypeKeyValue}
	must(bucket.WaitUntilReady(patience, &gocb.WaitUntilReadyOptions{ServiceTypes: kv}))
	router, err := bucket.Internal().IORouter()
	must(err)
	var id uint32
	await(func(answer func(error)) error {
		_, err := router.GetCollectionID(scope, collection, gocbcore.GetCollectionIDOptions{},
			func(got *gocbcore.GetCollectionIDResult, err error) {
				if err == nil {
					id = got.CollectionID
				}
				answer(err)
			})
		return err
	})
	return id
}

func connect() *gocbcore.DCPAgent {
	config := gocbcore.DCPAgentConfig{BucketName: os.Getenv("STAVE_BUCKET")}
	must(config.FromConnStr(os.Getenv("STAVE_CONN")))
	config.IoConfig.UseCollections = true
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{
		Username: os.Getenv("STAVE_USER"), Password: os.Getenv("STAVE_PASSWORD"),
	}
	agent, err := gocbcore.CreateDcpAgent(&config, fmt.Sprint("stream-", os.Getpid()), memd.DcpOpenFlagProducer)
	must(err)
	await(func(answer func(error)) error {
		_, err := agent.WaitUntilReady(time.Now().Add(patience), gocbcore.WaitUntilReadyOptions{},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { answer(err) })
		return err
	})
	return agent
}

// highSeqnos asks for each vBucket's last change of the collection, or of the bucket if that is 0.
func highSeqnos(agent *gocbcore.DCPAgent, collection uint32) map[uint16]uint64 {
	options := gocbcore.GetVbucketSeqnoOptions{}
	if collection != 0 {
		options.FilterOptions = &gocbcore.GetVbucketSeqnoFilterOptions{CollectionID: collection}
	}
	seqnos := map[uint16]uint64{}
	await(func(answer func(error)) error {
		_, err := agent.GetVbucketSeqnos(0, memd.VbucketStateActive, options,
			func(entries []gocbcore.VbSeqNoEntry, err error) {
				for _, entry := range entries {
					seqnos[entry.VbID] = uint64(entry.SeqNo)
				}
				answer(err)
			})
		return err
	})
	return seqnos
}

func (p *part) follow(agent *gocbcore.DCPAgent) {
	filter := gocbcore.OpenStreamOptions{FilterOptions: &gocbcore.OpenStreamFilterOptions{CollectionIDs: []uint32{p.id}}}
	for vb := range highSeqnos(agent, 0) {
		p.mutex.Lock()
		p.streams++
		p.mutex.Unlock()
		await(func(answer func(error)) error {
			_, err := agent.OpenStream(vb, memd.DcpStreamAddFlagActiveOnly, 0, 0, ^gocbcore.SeqNo(0), 0, 0, p, filter,
				func(_ []gocbcore.FailoverEntry, err error) { answer(err) })
			return err
		})
	}
}

func (p *part) show(agent *gocbcore.DCPAgent) {
	final := highSeqnos(agent, p.id)
	p.wait(func() bool {
		for vb, high := range final {
			if p.seen[vb] < high {
				return false
			}
		}
		return true
	})
	p.mutex.Lock()
	defer p.mutex.Unlock()
	line, err := json.Marshal(map[string]any{
		"documents": p.documents, "changes": p.changes, "strangers": p.strangers, "streams": p.streams,
	})
	must(err)
	fmt.Println(string(line))
}

func main() {
	if len(os.Args) != 3 {
		must(errors.New("usage: stream SCOPE COLLECTION"))
	}
	copied := newPart(idOf(os.Args[1], os.Args[2]))
	agent := connect()
	copied.follow(agent)
	fmt.Println("ready", strconv.FormatUint(uint64(copied.id), 16))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		copied.show(agent)
	}
	copied.wait(func() bool { return copied.streams == 0 })
	line, err := json.Marshal(map[string]any{"ended": copied.ended, "events": copied.events})
	must(err)
	fmt.Println(string(line))
	must(agent.Close())
}
