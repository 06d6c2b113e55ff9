package conformance

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

// newBucket makes a bucket that no other test has, and drops it in the end.
func newBucket(t *testing.T, settings gocb.BucketSettings, more *gocb.CreateBucketSettings) string {
	t.Helper()
	var unique [6]byte
	if _, err := rand.Read(unique[:]); err != nil {
		t.Fatal(err)
	}
	settings.Name = "go-" + hex.EncodeToString(unique[:])
	create := gocb.CreateBucketSettings{}
	if more != nil {
		create = *more
	}
	create.BucketSettings = settings
	if err := cluster.Buckets().CreateBucket(create, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := cluster.Buckets().DropBucket(settings.Name, nil)
		if err != nil && !errors.Is(err, gocb.ErrBucketNotFound) {
			t.Error(err)
		}
	})
	return settings.Name
}

func TestBucketIsMadeReadChangedAndDropped(t *testing.T) {
	buckets := cluster.Buckets()
	name := newBucket(t, gocb.BucketSettings{
		RAMQuotaMB:             100,
		NumReplicas:            0,
		BucketType:             gocb.CouchbaseBucketType,
		EvictionPolicy:         gocb.EvictionPolicyTypeFull,
		MaxExpiry:              time.Minute,
		CompressionMode:        gocb.CompressionModeActive,
		MinimumDurabilityLevel: gocb.DurabilityLevelNone,
		StorageBackend:         gocb.StorageBackendCouchstore,
	}, nil)
	settings, err := buckets.GetBucket(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if settings.RAMQuotaMB != 100 || settings.EvictionPolicy != gocb.EvictionPolicyTypeFull ||
		settings.MaxExpiry != time.Minute || settings.CompressionMode != gocb.CompressionModeActive ||
		settings.BucketType != gocb.CouchbaseBucketType || settings.FlushEnabled || settings.NumReplicas != 0 {
		t.Errorf("%+v", settings)
	}
	// The SDK sends the older name of the field as well, and what is sent first counts.
	settings.RAMQuotaMB, settings.FlushEnabled, settings.MaxTTL, settings.MaxExpiry = 150, true, 0, 2*time.Minute
	settings.EvictionPolicy, settings.StorageBackend = gocb.EvictionPolicyTypeFull, gocb.StorageBackendCouchstore
	if err := buckets.UpdateBucket(*settings, nil); err != nil {
		t.Fatal(err)
	}
	all, err := buckets.GetAllBuckets(nil)
	if err != nil {
		t.Fatal(err)
	}
	changed, ok := all[name]
	if !ok || changed.RAMQuotaMB != 150 || !changed.FlushEnabled || changed.MaxExpiry != 2*time.Minute {
		t.Errorf("%+v", changed)
	}
	if err := buckets.DropBucket(name, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := buckets.GetBucket(name, nil); !errors.Is(err, gocb.ErrBucketNotFound) {
		t.Errorf("%v", err)
	}
	if err := buckets.DropBucket(name, nil); !errors.Is(err, gocb.ErrBucketNotFound) {
		t.Errorf("%v", err)
	}
}

func TestBucketThatIsThereIsNotMadeAgain(t *testing.T) {
	settings := gocb.BucketSettings{RAMQuotaMB: 100, BucketType: gocb.CouchbaseBucketType}
	settings.Name = newBucket(t, settings, nil)
	again := gocb.CreateBucketSettings{BucketSettings: settings}
	if err := cluster.Buckets().CreateBucket(again, nil); !errors.Is(err, gocb.ErrBucketExists) {
		t.Errorf("%v", err)
	}
	settings.Name = "no such name!"
	wrong := gocb.CreateBucketSettings{BucketSettings: settings}
	if err := cluster.Buckets().CreateBucket(wrong, nil); !errors.Is(err, gocb.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
}

func TestNewBucketTakesDocumentsAndIsFlushed(t *testing.T) {
	for _, kind := range []gocb.BucketType{gocb.CouchbaseBucketType, gocb.EphemeralBucketType} {
		t.Run(string(kind), func(t *testing.T) {
			name := newBucket(t, gocb.BucketSettings{RAMQuotaMB: 100, BucketType: kind}, nil)
			// A connection of its own: it goes on looking for a bucket that was dropped.
			own, err := connect(os.Getenv("STAVE_USER"), os.Getenv("STAVE_PASSWORD"))
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close(nil)
			made := own.Bucket(name)
			if err := made.WaitUntilReady(long, &gocb.WaitUntilReadyOptions{
				ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue},
			}); err != nil {
				t.Fatal(err)
			}
			documents := made.DefaultCollection()
			if _, err := documents.Upsert("k", object{"a": 1}, nil); err != nil {
				t.Fatal(err)
			}
			err = cluster.Buckets().FlushBucket(name, nil)
			if !errors.Is(err, gocb.ErrBucketNotFlushable) {
				t.Errorf("%v", err)
			}
			if _, err := documents.Get("k", nil); err != nil {
				t.Fatal(err)
			}
			settings, err := cluster.Buckets().GetBucket(name, nil)
			if err != nil {
				t.Fatal(err)
			}
			settings.FlushEnabled = true
			if err := cluster.Buckets().UpdateBucket(*settings, nil); err != nil {
				t.Fatal(err)
			}
			if err := cluster.Buckets().FlushBucket(name, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := documents.Get("k", nil); !errors.Is(err, gocb.ErrDocumentNotFound) {
				t.Errorf("%v", err)
			}
			if _, err := documents.Upsert("k", object{"a": 2}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	if err := cluster.Buckets().FlushBucket("go-none", nil); !errors.Is(err, gocb.ErrBucketNotFound) {
		t.Errorf("%v", err)
	}
}
