package conformance

import (
	"os"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

var keyValueOnly = []gocb.ServiceType{gocb.ServiceTypeKeyValue}

func TestBucketBecomesReady(t *testing.T) {
	ok(t, bucket.WaitUntilReady(5*time.Second, &gocb.WaitUntilReadyOptions{
		DesiredState: gocb.ClusterStateOnline, ServiceTypes: keyValueOnly,
	}))
}

func TestSecondConnectionBecomesReadyAndCloses(t *testing.T) {
	other := must(connect(os.Getenv("STAVE_USER"), os.Getenv("STAVE_PASSWORD")))(t)
	mine := other.Bucket(os.Getenv("STAVE_BUCKET"))
	ok(t, mine.WaitUntilReady(5*time.Second, &gocb.WaitUntilReadyOptions{ServiceTypes: keyValueOnly}))
	must(mine.DefaultCollection().Upsert(newKey(t), 1, nil))(t)
	ok(t, other.Close(nil))
}

func TestWrongCredentials(t *testing.T) {
	for name, pair := range map[string][2]string{
		"password": {os.Getenv("STAVE_USER"), "not the password"},
		"user":     {"nobody", os.Getenv("STAVE_PASSWORD")},
	} {
		t.Run(name, func(t *testing.T) {
			other := must(connect(pair[0], pair[1]))(t)
			mine := other.Bucket(os.Getenv("STAVE_BUCKET"))
			// By default the SDK goes on trying until the timeout; fail-fast gives the reason.
			err := mine.WaitUntilReady(3*time.Second, &gocb.WaitUntilReadyOptions{
				ServiceTypes: keyValueOnly, RetryStrategy: failFast{},
			})
			wantErr(t, err, gocb.ErrAuthenticationFailure)
			ok(t, other.Close(nil))
		})
	}
}

func TestUnknownBucket(t *testing.T) {
	other := must(connect(os.Getenv("STAVE_USER"), os.Getenv("STAVE_PASSWORD")))(t)
	mine := other.Bucket("no-such-bucket")
	err := mine.WaitUntilReady(2*time.Second, &gocb.WaitUntilReadyOptions{ServiceTypes: keyValueOnly})
	// A user with all rights is told "not found", which the SDK may retry until the timeout.
	wantErr(t, err, gocb.ErrBucketNotFound, gocb.ErrTimeout)
	ok(t, other.Close(nil))
}

type failFast struct{}

func (failFast) RetryAfter(gocb.RetryRequest, gocb.RetryReason) gocb.RetryAction {
	return &gocb.NoRetryRetryAction{}
}

func TestPingReachesTheKeyValueService(t *testing.T) {
	report := must(bucket.Ping(&gocb.PingOptions{ServiceTypes: keyValueOnly}))(t)
	endpoints := report.Services[gocb.ServiceTypeKeyValue]
	wantTrue(t, len(endpoints) > 0, "there is an endpoint")
	for _, endpoint := range endpoints {
		wantEqual(t, endpoint.State, gocb.PingStateOk)
		wantTrue(t, endpoint.Latency > 0, "latency is measured")
	}
}

// The management service answers on the HTTP port that the cluster config names.
func TestPingReachesTheManagementService(t *testing.T) {
	report := must(bucket.Ping(&gocb.PingOptions{ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeManagement}}))(t)
	endpoints := report.Services[gocb.ServiceTypeManagement]
	wantTrue(t, len(endpoints) > 0, "there is an endpoint")
	for _, endpoint := range endpoints {
		wantEqual(t, endpoint.State, gocb.PingStateOk)
	}
}

func TestDiagnosticsListsConnectedEndpoints(t *testing.T) {
	upsert(t, newKey(t), 1)
	report := must(cluster.Diagnostics(nil))(t)
	wantTrue(t, len(report.Services["kv"]) > 0, "there is an endpoint")
	for _, endpoint := range report.Services["kv"] {
		wantEqual(t, endpoint.State, gocb.EndpointStateConnected)
	}
}
