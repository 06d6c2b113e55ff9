package conformance

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

// Longer than a client needs to find a server that it trusts.
const untrusted = 2 * time.Second

// trusting connects with TLS, to CONN by what AUTHENTICATOR shows, trusting the certificates of a file alone.
func trusting(t *testing.T, conn, ca string, authenticator gocb.Authenticator) *gocb.Cluster {
	t.Helper()
	return must(gocb.Connect(conn, gocb.ClusterOptions{
		Authenticator:  authenticator,
		SecurityConfig: gocb.SecurityConfig{TLSRootCAs: must(trusted(ca))(t)},
	}))(t)
}

// wantRefused fails if such a connection becomes ready.
func wantRefused(t *testing.T, what, conn, ca string, authenticator gocb.Authenticator) {
	t.Helper()
	other := trusting(t, conn, ca, authenticator)
	err := other.Bucket(os.Getenv("STAVE_BUCKET")).WaitUntilReady(untrusted, nil)
	wantTrue(t, err != nil, what)
	ok(t, other.Close(nil))
}

func password() gocb.Authenticator {
	return gocb.PasswordAuthenticator{Username: os.Getenv("STAVE_USER"), Password: os.Getenv("STAVE_PASSWORD")}
}

// certified shows the administrator's certificate that a CA has signed, as `stave certs client` writes it.
func certified(t *testing.T, folder string) gocb.Authenticator {
	t.Helper()
	pair := must(tls.LoadX509KeyPair(filepath.Join(folder, "client.pem"), filepath.Join(folder, "client.key")))(t)
	return gocb.CertificateAuthenticator{ClientCertificate: &pair}
}

func needsTls(t *testing.T) {
	t.Helper()
	if os.Getenv("STAVE_CA") == "" {
		t.Skip("the server is used without TLS here")
	}
}

func TestTlsWithAnotherCaIsNotTrusted(t *testing.T) {
	needsTls(t)
	wantRefused(t, "the server is not trusted", os.Getenv("STAVE_CONN"), os.Getenv("STAVE_STRANGE_CA"), password())
}

func TestTlsAtANameThatIsNotInTheCertificateIsNotTrusted(t *testing.T) {
	needsTls(t)
	conn := os.Getenv("STAVE_CONN")
	// Another name of this machine, which the certificate does not have.
	elsewhere := "couchbases://localhost" + conn[strings.LastIndex(conn, ":"):]
	wantRefused(t, "the name is not the server's", elsewhere, os.Getenv("STAVE_CA"), password())
}

// A server that shows an expired certificate hears from the client why it goes away.
func TestTlsWithAnExpiredCertificateIsNotTrusted(t *testing.T) {
	needsTls(t)
	expired := must(tls.LoadX509KeyPair(os.Getenv("STAVE_EXPIRED"), os.Getenv("STAVE_EXPIRED")))(t)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	heard := make(chan error, 100)
	go func() {
		defer close(heard)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			server := tls.Server(connection, &tls.Config{Certificates: []tls.Certificate{expired}})
			// With TLS 1.3 what a client thinks of the certificate comes behind the handshake.
			err = server.Handshake()
			if err == nil {
				_, err = server.Read(make([]byte, 1))
			}
			heard <- err
			_ = connection.Close()
		}
	}()
	conn := "couchbases://" + listener.Addr().String()
	wantRefused(t, "the certificate has ended", conn, os.Getenv("STAVE_CA"), password())
	ok(t, listener.Close())
	isNamed := false
	for err := range heard {
		wantTrue(t, err != nil, "no client goes on")
		// One that is closed meanwhile says nothing.
		isNamed = isNamed || strings.Contains(err.Error(), "certificate")
	}
	wantTrue(t, isNamed, "a client came, and named the certificate")
}

func TestTlsCertificateTakesThePlaceOfAPassword(t *testing.T) {
	needsTls(t)
	own := trusting(t, os.Getenv("STAVE_CONN"), os.Getenv("STAVE_CA"), certified(t, os.Getenv("STAVE_CLIENT")))
	documents, key := own.Bucket(os.Getenv("STAVE_BUCKET")).DefaultCollection(), newKey(t)
	must(documents.Upsert(key, object{"a": 1}, &gocb.UpsertOptions{Timeout: long}))(t)
	var value object
	ok(t, must(documents.Get(key, nil))(t).Content(&value))
	wantEqual(t, value["a"], 1.0)
	ok(t, own.Close(nil))
}

func TestTlsCertificateOfAnotherCaDoesNot(t *testing.T) {
	needsTls(t)
	certificate := certified(t, os.Getenv("STAVE_STRANGE_CLIENT"))
	wantRefused(t, "the server does not know the CA", os.Getenv("STAVE_CONN"), os.Getenv("STAVE_CA"), certificate)
}
