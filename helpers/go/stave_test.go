package stavedev

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// For dies_with_parent.py: the program of the tests waits instead, and is killed.
func TestMain(m *testing.M) {
	if os.Getenv("STAVE_WAIT") == "" {
		os.Exit(m.Run())
	}
	dev, err := Open(Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(dev.PID)
	io.Copy(io.Discard, os.Stdin)
}

func TestOrders(t *testing.T) {
	dev := Start(t, Options{Nodes: 2})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(dev.Delay(100, Injection{Opcode: "get"}))
	must(dev.Fail(Injection{Opcode: "set", Node: 2, Times: 3}))
	must(dev.Stop(1))
	must(dev.Reset())
	told, err := dev.Status()
	must(err)
	nodes := told["nodes"].([]any)
	if len(nodes) != 2 || !strings.HasPrefix(dev.ConnectionString, "couchbase://"+dev.Nodes[0].KV+",") {
		t.Fatal(nodes, dev.ConnectionString)
	}
	for _, node := range nodes {
		node := node.(map[string]any)
		if node["may_serve"] != true || len(node["injections"].([]any)) != 0 {
			t.Fatal(node)
		}
	}
	must(dev.Freeze(2))
	must(dev.Thaw(2))
	must(dev.Restart(2))
	must(dev.Heal())
	must(dev.AdvanceClock(60))
	refused(t, dev.Kill(9), "404: there is no node 9")
	refused(t, dev.Thaw(1), "is not frozen")
	refused(t, dev.Fail(Injection{Status: "maybe"}), "temporary-failure, busy")
}

func TestSeedFile(t *testing.T) {
	seed := filepath.Join(t.TempDir(), "seed.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(seed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"buckets": {"travel": {"scopes": {"app": {"collections": {"users": {"documents": {"a": 1}}}}}}}}`)
	dev := Start(t, Options{SeedFile: seed})
	if err := dev.Reset(); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodGet, dev.HTTP+"/pools/default/buckets/travel/scopes", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(dev.Username, dev.Password)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(body), `"users"`) {
		t.Fatal(err, string(body))
	}
	write("{}")
	_, err = Open(Options{SeedFile: seed})
	refused(t, err, "missing field `buckets` at line 1")
}

func TestWhatDoesNotStartSaysWhy(t *testing.T) {
	_, err := Open(Options{Replicas: 5})
	refused(t, err, "--replicas 5: give a number")
	_, err = Open(Options{Binary: "/nowhere/stave"})
	refused(t, err, "/nowhere/stave is not an executable file")
}

func TestClosingEndsTheProcess(t *testing.T) {
	dev, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil || dev.Close() != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(dev.PID, 0); err != syscall.ESRCH {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, why string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("%v does not say %q", err, why)
	}
}
