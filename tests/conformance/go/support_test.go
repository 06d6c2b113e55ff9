// Package conformance holds a server to what the Go SDK expects of it.
package conformance

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

const (
	mib = 1024 * 1024
	// An operation that the SDK retries until its timeout is given this much.
	short = 400 * time.Millisecond
	// Values of 20 MiB and writes that wait for the disk get more than the SDK's 2.5 seconds.
	long = 20 * time.Second
	// How long a document with an expiry of one second may take to be gone.
	expiryDeadline = 10 * time.Second
)

var (
	cluster    *gocb.Cluster
	bucket     *gocb.Bucket
	collection *gocb.Collection
)

type object = map[string]any

// hasReplicas says whether the bucket keeps copies on other nodes.
func hasReplicas() bool { return os.Getenv("STAVE_REPLICAS") != "0" }

func TestMain(m *testing.M) {
	if err := connectAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code := m.Run()
	if err := cluster.Close(nil); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
		code = 1
	}
	os.Exit(code)
}

func connectAll() error {
	for _, name := range []string{"STAVE_CONN", "STAVE_USER", "STAVE_PASSWORD", "STAVE_BUCKET", "STAVE_REPLICAS"} {
		if os.Getenv(name) == "" {
			return fmt.Errorf("%s is not set: run tests/conformance/run.sh", name)
		}
	}
	var err error
	if cluster, err = connect(os.Getenv("STAVE_USER"), os.Getenv("STAVE_PASSWORD")); err != nil {
		return err
	}
	bucket = cluster.Bucket(os.Getenv("STAVE_BUCKET"))
	collection = bucket.DefaultCollection()
	return bucket.WaitUntilReady(10*time.Second, &gocb.WaitUntilReadyOptions{
		ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue},
	})
}

// connect speaks TLS if STAVE_CA names the certificates that are trusted.
func connect(user, password string) (*gocb.Cluster, error) {
	options := gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{Username: user, Password: password},
	}
	if ca := os.Getenv("STAVE_CA"); ca != "" {
		roots, err := trusted(ca)
		if err != nil {
			return nil, err
		}
		options.SecurityConfig.TLSRootCAs = roots
	}
	return gocb.Connect(os.Getenv("STAVE_CONN"), options)
}

// trusted reads a file of certificates.
func trusted(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return roots, nil
}

// newKey is a key no other test and no earlier run on the same server has used.
func newKey(t *testing.T) string {
	t.Helper()
	var unique [16]byte
	if _, err := rand.Read(unique[:]); err != nil {
		t.Fatal(err)
	}
	name := strings.Split(t.Name(), "/")[0]
	return fmt.Sprintf("go:%.60s:%s", name, hex.EncodeToString(unique[:]))
}

// must unwraps a result whose error fails the test.
func must[T any](result T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatalf("unexpected error: %v", err)
		}
		return result
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// wantErr fails unless the error is one of the documented ones.
func wantErr(t *testing.T, err error, documented ...error) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, expected %v", documented)
	}
	for _, target := range documented {
		if errors.Is(err, target) {
			return
		}
	}
	t.Fatalf("error %v, expected %v", err, documented)
}

func wantEqual(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %.300s, want %.300s", fmt.Sprint(got), fmt.Sprint(want))
	}
}

func wantTrue(t *testing.T, condition bool, what string) {
	t.Helper()
	if !condition {
		t.Fatalf("not true: %s", what)
	}
}

func upsert(t *testing.T, key string, value any) *gocb.MutationResult {
	t.Helper()
	return must(collection.Upsert(key, value, nil))(t)
}

// content reads a JSON document.
func content[T any](t *testing.T, key string) T {
	t.Helper()
	var value T
	ok(t, must(collection.Get(key, nil))(t).Content(&value))
	return value
}

func exists(t *testing.T, key string) bool {
	t.Helper()
	return must(collection.Exists(key, nil))(t).Exists()
}

// waitUntilGone polls, so that the test lasts as long as the expiry does and no longer.
func waitUntilGone(t *testing.T, key string) {
	t.Helper()
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for deadline := time.Now().Add(expiryDeadline); time.Now().Before(deadline); <-ticks.C {
		_, err := collection.Get(key, nil)
		if errors.Is(err, gocb.ErrDocumentNotFound) {
			return
		}
		ok(t, err)
	}
	t.Fatalf("%s is still there %v after it should have expired", key, expiryDeadline)
}

// storedExpiry is the zero time for a document without an expiry.
func storedExpiry(t *testing.T, key string) time.Time {
	t.Helper()
	return must(collection.Get(key, &gocb.GetOptions{WithExpiry: true}))(t).ExpiryTime()
}

func wantExpiresIn(t *testing.T, key string, expected time.Duration) {
	t.Helper()
	at := storedExpiry(t, key)
	if at.IsZero() {
		t.Fatal("the document has no expiry")
	}
	left := time.Until(at)
	if left < expected-4*time.Second || left > expected+2*time.Second {
		t.Fatalf("expires in %v, expected %v", left, expected)
	}
}

func asTimeout(err error, target **gocb.TimeoutError) bool {
	return errors.As(err, target)
}
