package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/couchbase/gocb/v2"
	"golang.org/x/sys/unix"
)

// Classes of answers.
const (
	classOk    = "ok"    // it was done
	classNo    = "no"    // it surely was not done, and never will be
	classMaybe = "maybe" // nobody knows
)

// event is one operation: who asked what, when, and how it ended.
type event struct {
	Process int    `json:"process"`
	Key     string `json:"key"`
	Level   string `json:"level,omitempty"`
	Op      string `json:"op"`
	// What is written, or is to be added.
	Value uint64 `json:"value,omitempty"`
	// The CAS that a replace expects.
	Expected uint64 `json:"expected,omitempty"`
	Invoked  int64  `json:"invoked"`
	Answered int64  `json:"answered"`
	Class    string `json:"class"`
	Error    string `json:"error,omitempty"`
	// What the SDK says of an error that is not an answer of a node.
	Detail string `json:"detail,omitempty"`
	// The document's CAS afterwards; 0 if there is none.
	Cas uint64 `json:"cas,omitempty"`
	// What was read: one number of a register or counter, the elements of a set.
	Read []uint64 `json:"read,omitempty"`
}

// now is the monotonic clock of the machine, in nanoseconds: the same in all processes.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// history is the file of all events, one JSON object a line.
type history struct {
	mutex sync.Mutex
	file  *os.File
	out   *bufio.Writer
	done  [3]atomic.Int64
}

func newHistory(path string) (*history, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &history{file: file, out: bufio.NewWriterSize(file, 1<<20)}, nil
}

func (h *history) add(e *event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	switch e.Class {
	case classOk:
		h.done[0].Add(1)
	case classNo:
		h.done[1].Add(1)
	default:
		h.done[2].Add(1)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if _, err := h.out.Write(line); err != nil {
		return err
	}
	return h.out.WriteByte('\n')
}

func (h *history) close() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.out.Flush(); err != nil {
		return err
	}
	return h.file.Close()
}

// Errors after which an operation has surely not been done, with their names.
var refusals = []struct {
	err  error
	name string
}{
	{gocb.ErrDurabilityImpossible, "durability impossible"},
	{gocb.ErrDurableWriteInProgress, "sync write in progress"},
	{gocb.ErrDurableWriteReCommitInProgress, "sync write re-commit in progress"},
	{gocb.ErrCasMismatch, "cas mismatch"},
	{gocb.ErrDocumentNotFound, "not found"},
	{gocb.ErrTemporaryFailure, "temporary failure"},
	{gocb.ErrUnambiguousTimeout, "unambiguous timeout"},
	{gocb.ErrBucketNotFound, "no such bucket"},
	{gocb.ErrAuthenticationFailure, "not logged in"},
}

var doubts = []struct {
	err  error
	name string
}{
	{gocb.ErrDurabilityAmbiguous, "durability ambiguous"},
	{gocb.ErrAmbiguousTimeout, "ambiguous timeout"},
	// A unique element or document is there already only if an earlier try of the same operation came through.
	{gocb.ErrDocumentExists, "exists"},
	{gocb.ErrPathExists, "path exists"},
}

// classify says what an error means for whoever asked.
func classify(err error) (class, name string) {
	if err == nil {
		return classOk, ""
	}
	for _, doubt := range doubts {
		if errors.Is(err, doubt.err) {
			return classMaybe, doubt.name
		}
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal.err) {
			return classNo, refusal.name
		}
	}
	// Behind the bar the SDK says which operation it was.
	name, _, _ = strings.Cut(err.Error(), " | ")
	return classMaybe, name
}
