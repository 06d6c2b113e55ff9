package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/couchbase/gocb/v2"
)

const (
	readWithin  = 1500 * time.Millisecond
	writeWithin = 2500 * time.Millisecond
)

var levels = []struct {
	level gocb.DurabilityLevel
	name  string
}{
	{gocb.DurabilityLevelMajority, "majority"},
	{gocb.DurabilityLevelMajorityAndPersistOnMaster, "majorityAndPersistActive"},
	{gocb.DurabilityLevelPersistToMajority, "persistToMajority"},
}

// jsonFlags says that a value is JSON (SDK RFC 20, common flags).
const jsonFlags = 2 << 24

// bytesAsTheyAre takes values without looking at their flags: counters have others than JSON has.
type bytesAsTheyAre struct{}

func (bytesAsTheyAre) Decode(bytes []byte, _ uint32, out any) error {
	to, ok := out.(*[]byte)
	if !ok {
		return errors.New("values are read as bytes")
	}
	*to = bytes
	return nil
}

func (bytesAsTheyAre) Encode(value any) ([]byte, uint32, error) {
	bytes, err := json.Marshal(value)
	return bytes, jsonFlags, err
}

// client runs operations and writes down how they ended.
type client struct {
	process    int
	collection *gocb.Collection
	history    *history
	// The CAS of each register as it was seen last.
	seen map[string]gocb.Cas
}

func (c *client) begin(op, key string, level int) *event {
	e := &event{Process: c.process, Key: key, Op: op, Invoked: now()}
	if level >= 0 {
		e.Level = levels[level].name
	}
	return e
}

func (c *client) end(e *event, cas gocb.Cas, err error) error {
	e.Answered = now()
	e.Class, e.Error = classify(err)
	if err == nil {
		e.Cas = uint64(cas)
	} else if !errors.Is(err, gocb.ErrCasMismatch) {
		e.Detail = err.Error()
	}
	return c.history.add(e)
}

func (c *client) write(key string, level int, value uint64) error {
	e := c.begin("write", key, level)
	e.Value = value
	result, err := c.collection.Upsert(key, value, &gocb.UpsertOptions{
		DurabilityLevel: levels[level].level, Timeout: writeWithin, Transcoder: bytesAsTheyAre{},
	})
	var cas gocb.Cas
	if err == nil {
		cas = result.Cas()
		c.seen[key] = cas
	}
	return c.end(e, cas, err)
}

func (c *client) replace(key string, level int, value uint64) error {
	e := c.begin("replace", key, level)
	e.Value, e.Expected = value, uint64(c.seen[key])
	result, err := c.collection.Replace(key, value, &gocb.ReplaceOptions{
		Cas:             c.seen[key],
		DurabilityLevel: levels[level].level, Timeout: writeWithin, Transcoder: bytesAsTheyAre{},
	})
	var cas gocb.Cas
	if err == nil {
		cas = result.Cas()
		c.seen[key] = cas
	}
	return c.end(e, cas, err)
}

func (c *client) insert(key string, level int, value uint64) error {
	e := c.begin("insert", key, level)
	e.Value = value
	result, err := c.collection.Insert(key, value, &gocb.InsertOptions{
		DurabilityLevel: levels[level].level, Timeout: writeWithin, Transcoder: bytesAsTheyAre{},
	})
	var cas gocb.Cas
	if err == nil {
		cas = result.Cas()
	}
	return c.end(e, cas, err)
}

func (c *client) increment(key string, level int) error {
	e := c.begin("increment", key, level)
	result, err := c.collection.Binary().Increment(key, &gocb.IncrementOptions{
		Initial: 1, Delta: 1, DurabilityLevel: levels[level].level, Timeout: writeWithin,
	})
	var cas gocb.Cas
	if err == nil {
		cas = result.Cas()
		e.Read = []uint64{result.Content()}
	}
	return c.end(e, cas, err)
}

func (c *client) addToSet(key string, level int, element uint64) error {
	e := c.begin("add", key, level)
	e.Value = element
	unique := gocb.ArrayAddUniqueSpec("s", element, &gocb.ArrayAddUniqueSpecOptions{CreatePath: true})
	result, err := c.collection.MutateIn(key, []gocb.MutateInSpec{unique}, &gocb.MutateInOptions{
		StoreSemantic:   gocb.StoreSemanticsUpsert,
		DurabilityLevel: levels[level].level, Timeout: writeWithin,
	})
	var cas gocb.Cas
	if err == nil {
		cas = result.Cas()
	}
	return c.end(e, cas, err)
}

// read reads a document; one that is not there is an answer like any other.
func (c *client) read(op, key string, parse func([]byte) ([]uint64, error)) (bool, error) {
	e := c.begin(op, key, -1)
	result, err := c.collection.Get(key, &gocb.GetOptions{Timeout: readWithin, Transcoder: bytesAsTheyAre{}})
	if errors.Is(err, gocb.ErrDocumentNotFound) {
		return true, c.end(e, 0, nil)
	}
	if err != nil {
		return false, c.end(e, 0, err)
	}
	var bytes []byte
	if err := result.Content(&bytes); err != nil {
		return false, err
	}
	values, err := parse(bytes)
	if err != nil {
		return false, fmt.Errorf("%s holds %q: %w", key, bytes, err)
	}
	e.Read = values
	c.seen[key] = result.Cas()
	return true, c.end(e, result.Cas(), nil)
}

func number(bytes []byte) ([]uint64, error) {
	value, err := strconv.ParseUint(string(bytes), 10, 64)
	return []uint64{value}, err
}

func elements(bytes []byte) ([]uint64, error) {
	var document struct {
		Elements []uint64 `json:"s"`
	}
	err := json.Unmarshal(bytes, &document)
	return document.Elements, err
}
