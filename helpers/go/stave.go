// Package stavedev starts development clusters of Stave for tests.
package stavedev

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Options of a cluster; the zero value is one node with the bucket "default".
type Options struct {
	Nodes, Replicas int
	// Buckets as NAME[:QUOTA[:TYPE]].
	Buckets            []string
	Username, Password string
	// Binary is the stave program.
	Binary string
	// SeedFile has the documents that the cluster begins with, after each reset too; see docs/developing.md.
	SeedFile string
	// Arguments are more arguments of `stave dev`.
	Arguments []string
}

// Node says where a node listens.
type Node struct {
	Node       int
	KV, HTTP   string
	KVS, HTTPS *string
}

// Dev is a running cluster. It ends with Close and with this process.
type Dev struct {
	ConnectionString, Username, Password string
	// HTTP is the address of the first node, Control that of the control endpoint, as URLs.
	HTTP, Control string
	// CA is the file of the certificate's CA, if the nodes speak TLS.
	CA    string
	Nodes []Node
	PID   int

	command *exec.Cmd
	ended   sync.Once
	failure error
}

// TB is what Start needs of *testing.T, *testing.B and *testing.M's like.
type TB interface {
	Helper()
	Fatal(...any)
	Cleanup(func())
}

// Start starts a cluster that ends with the test.
func Start(t TB, options Options) *Dev {
	t.Helper()
	dev, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return dev
}

// Open starts a cluster, and waits until all of its nodes serve.
func Open(options Options) (*Dev, error) {
	binary, err := FindBinary(options.Binary)
	if err != nil {
		return nil, err
	}
	username, password := or(options.Username, "Administrator"), or(options.Password, "password")
	arguments := []string{"dev", "--json", "--with-parent", strconv.Itoa(os.Getpid()),
		"--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--nodes", strconv.Itoa(max(options.Nodes, 1)),
		"--replicas", strconv.Itoa(options.Replicas), "--username", username}
	for _, bucket := range options.Buckets {
		arguments = append(arguments, "--bucket", bucket)
	}
	if options.SeedFile != "" {
		arguments = append(arguments, "--seed-file", options.SeedFile)
	}
	command := exec.Command(binary, append(arguments, options.Arguments...)...)
	command.Env = append(os.Environ(), "STAVE_PASSWORD="+password)
	log := &tail{}
	command.Stderr = log
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err != nil {
		ended := command.Wait()
		return nil, fmt.Errorf("stave dev ended (%v) before it was ready; its log ends with:\n%s", ended, log)
	}
	var ready struct {
		Control string
		CA      string
		Nodes   []Node
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		command.Process.Kill()
		command.Wait()
		return nil, fmt.Errorf("stave dev printed %q instead of its ready line: %w", line, err)
	}
	dev := &Dev{Username: username, Password: password, CA: ready.CA, Nodes: ready.Nodes, command: command,
		HTTP: "http://" + ready.Nodes[0].HTTP, Control: "http://" + ready.Control, PID: command.Process.Pid}
	var kv []string
	for _, node := range ready.Nodes {
		kv = append(kv, node.KV)
	}
	dev.ConnectionString = "couchbase://" + strings.Join(kv, ",")
	return dev, nil
}

// Close ends the cluster and waits for that; it does nothing the second time.
func (d *Dev) Close() error {
	d.ended.Do(func() {
		d.command.Process.Signal(syscall.SIGTERM)
		d.failure = d.command.Wait()
	})
	return d.failure
}

// Order gives any order of the control endpoint, such as "nodes/2/cut?from=store", and returns what the cluster is then.
func (d *Dev) Order(path string) (map[string]any, error) {
	return d.ask(http.MethodPost, path)
}

// Status tells what each node is and where it listens.
func (d *Dev) Status() (map[string]any, error) {
	return d.ask(http.MethodGet, "")
}

func (d *Dev) ask(method, path string) (map[string]any, error) {
	address := d.Control + "/v1/dev/" + path
	request, err := http.NewRequest(method, address, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	told := map[string]any{}
	if err := json.Unmarshal(body, &told); err != nil {
		return nil, fmt.Errorf("%s %s was answered with %q: %w", method, address, body, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s was refused with %d: %v", method, address, answer.StatusCode, told["message"])
	}
	return told, nil
}

// Injection says what is delayed or refused; the zero value is every command that is answered from documents, on all
// nodes, until Heal.
type Injection struct {
	Opcode      string
	Node, Times int
	// Status of a failure: temporary-failure (the default), busy, out-of-memory or internal-error.
	Status string
}

func (d *Dev) inject(order string, injection Injection, values url.Values) error {
	if injection.Opcode != "" {
		values.Set("opcode", injection.Opcode)
	}
	if injection.Times != 0 {
		values.Set("times", strconv.Itoa(injection.Times))
	}
	if injection.Node != 0 {
		order = fmt.Sprintf("nodes/%d/%s", injection.Node, order)
	}
	_, err := d.Order(order + "?" + values.Encode())
	return err
}

// Reset lets all nodes serve without injected failures, and empties all buckets.
func (d *Dev) Reset() error { return d.only("reset") }

// Delay lets requests wait.
func (d *Dev) Delay(ms int, injection Injection) error {
	return d.inject("delay", injection, url.Values{"ms": {strconv.Itoa(ms)}})
}

// Fail refuses requests.
func (d *Dev) Fail(injection Injection) error {
	return d.inject("fail", injection, url.Values{"status": {or(injection.Status, "temporary-failure")}})
}

// Heal takes back delays and failures of all nodes.
func (d *Dev) Heal() error { return d.only("heal") }

// AdvanceClock moves the wall clock of all nodes, so that documents expire.
func (d *Dev) AdvanceClock(seconds int) error {
	return d.only("clock?advance_s=" + strconv.Itoa(seconds))
}

// Kill ends a node as kill -9 would.
func (d *Dev) Kill(node int) error { return d.of(node, "kill") }

// Stop closes a node cleanly.
func (d *Dev) Stop(node int) error { return d.of(node, "stop") }

// StartNode starts a node where it was.
func (d *Dev) StartNode(node int) error { return d.of(node, "start") }

// Restart stops and starts a node.
func (d *Dev) Restart(node int) error { return d.of(node, "restart") }

// Freeze lets a node stand still.
func (d *Dev) Freeze(node int) error { return d.of(node, "freeze") }

// Thaw lets it go on.
func (d *Dev) Thaw(node int) error { return d.of(node, "thaw") }

// Failover lets others take over from a node.
func (d *Dev) Failover(node int) error { return d.of(node, "failover") }

// Recover takes a node back.
func (d *Dev) Recover(node int) error { return d.of(node, "recover") }

func (d *Dev) of(node int, order string) error {
	return d.only(fmt.Sprintf("nodes/%d/%s", node, order))
}

func (d *Dev) only(path string) error {
	_, err := d.Order(path)
	return err
}

// FindBinary finds the program: the one given, STAVE_BIN, one on the PATH, one of the repository, or one built there.
func FindBinary(binary string) (string, error) {
	if named := or(binary, os.Getenv("STAVE_BIN")); named != "" {
		if !isProgram(named) {
			return "", fmt.Errorf("%s is not an executable file: give the path of the stave program", named)
		}
		return named, nil
	}
	if path, err := exec.LookPath("stave"); err == nil {
		return path, nil
	}
	for _, root := range repositories() {
		built := filepath.Join(root, "target", "release", "stave")
		for _, path := range []string{built, filepath.Join(root, "target", "debug", "stave")} {
			if isProgram(path) {
				return path, nil
			}
		}
		if _, err := exec.LookPath("cargo"); err == nil {
			fmt.Fprintf(os.Stderr, "building stave in %s, which takes minutes\n", root)
			build := exec.Command("cargo", "build", "--release", "--package", "stave")
			build.Dir, build.Stderr = root, os.Stderr
			return built, build.Run()
		}
	}
	return "", errors.New("no stave program was found: give Options.Binary, set STAVE_BIN, put stave on the PATH, " +
		"or build it with `cargo build --release` in the Stave repository")
}

func repositories() (found []string) {
	starts := []string{}
	if here, err := os.Getwd(); err == nil {
		starts = append(starts, here)
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		starts = append(starts, filepath.Dir(file))
	}
	for _, folder := range starts {
		for ; folder != filepath.Dir(folder); folder = filepath.Dir(folder) {
			if _, err := os.Stat(filepath.Join(folder, "crates", "stave", "Cargo.toml")); err == nil {
				found = append(found, folder)
			}
		}
	}
	return found
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func or(given, otherwise string) string {
	if given != "" {
		return given
	}
	return otherwise
}

// The end of a log.
type tail struct{ kept bytes.Buffer }

const logBytes = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.kept.Write(p)
	if more := t.kept.Len() - logBytes; more > 0 {
		t.kept.Next(more)
	}
	return len(p), nil
}

func (t *tail) String() string { return t.kept.String() }
