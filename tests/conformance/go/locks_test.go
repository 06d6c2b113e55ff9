package conformance

import (
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

// lock makes a document that stays locked for the length of a test; gives the CAS that unlocks it.
func lock(t *testing.T, key string) gocb.Cas {
	t.Helper()
	upsert(t, key, 1)
	return must(collection.GetAndLock(key, 20*time.Second, nil))(t).Cas()
}

// While a document is locked the SDK retries until the timeout, whose error names the lock as the reason.
func wantLocked(t *testing.T, err error) {
	t.Helper()
	wantErr(t, err, gocb.ErrDocumentLocked, gocb.ErrTimeout)
	var timeout *gocb.TimeoutError
	if asTimeout(err, &timeout) {
		for _, reason := range timeout.RetryReasons {
			if reason.Description() == "KV_LOCKED" {
				return
			}
		}
		t.Fatalf("timeout without the reason KV_LOCKED: %v", timeout.RetryReasons)
	}
}

func TestGetAndLockReturnsTheDocument(t *testing.T) {
	key := newKey(t)
	before := upsert(t, key, 1).Cas()
	result := must(collection.GetAndLock(key, 5*time.Second, nil))(t)
	var got int
	ok(t, result.Content(&got))
	wantEqual(t, got, 1)
	wantTrue(t, result.Cas() != 0 && result.Cas() != before, "locking changes the CAS")
}

func TestGetAndLockOfAMissingDocument(t *testing.T) {
	_, err := collection.GetAndLock(newKey(t), 5*time.Second, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestLockedDocumentIsReadable(t *testing.T) {
	key := newKey(t)
	lock(t, key)
	wantEqual(t, content[int](t, key), 1)
}

func TestLockedDocumentHidesItsCas(t *testing.T) {
	key := newKey(t)
	cas := lock(t, key)
	wantTrue(t, must(collection.Get(key, nil))(t).Cas() != cas, "the CAS is hidden")
}

func TestLockedDocumentRefusesChanges(t *testing.T) {
	specs := []gocb.MutateInSpec{gocb.UpsertSpec("a", 1, nil)}
	for name, change := range map[string]func(key string) error{
		"get and lock": func(key string) error {
			_, err := collection.GetAndLock(key, time.Second, &gocb.GetAndLockOptions{Timeout: short})
			return err
		},
		"upsert": func(key string) error {
			_, err := collection.Upsert(key, 2, &gocb.UpsertOptions{Timeout: short})
			return err
		},
		"replace": func(key string) error {
			_, err := collection.Replace(key, 2, &gocb.ReplaceOptions{Timeout: short})
			return err
		},
		"remove": func(key string) error {
			_, err := collection.Remove(key, &gocb.RemoveOptions{Timeout: short})
			return err
		},
		"touch": func(key string) error {
			_, err := collection.Touch(key, hundred, &gocb.TouchOptions{Timeout: short})
			return err
		},
		"get and touch": func(key string) error {
			_, err := collection.GetAndTouch(key, hundred, &gocb.GetAndTouchOptions{Timeout: short})
			return err
		},
		"mutate in": func(key string) error {
			_, err := collection.MutateIn(key, specs, &gocb.MutateInOptions{Timeout: short})
			return err
		},
		"increment": func(key string) error {
			_, err := collection.Binary().Increment(key, &gocb.IncrementOptions{Delta: 1, Timeout: short})
			return err
		},
		"append": func(key string) error {
			_, err := collection.Binary().Append(key, []byte("x"), &gocb.AppendOptions{Timeout: short})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey(t)
			lock(t, key)
			wantLocked(t, change(key))
			wantEqual(t, content[int](t, key), 1)
		})
	}
}

func TestReplaceWithTheLockCasUnlocks(t *testing.T) {
	key := newKey(t)
	cas := lock(t, key)
	must(collection.Replace(key, 2, &gocb.ReplaceOptions{Cas: cas}))(t)
	must(collection.Upsert(key, 3, &gocb.UpsertOptions{Timeout: short}))(t)
	wantEqual(t, content[int](t, key), 3)
}

func TestRemoveWithTheLockCas(t *testing.T) {
	key := newKey(t)
	must(collection.Remove(key, &gocb.RemoveOptions{Cas: lock(t, key)}))(t)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestUnlock(t *testing.T) {
	key := newKey(t)
	ok(t, collection.Unlock(key, lock(t, key), nil))
	must(collection.Upsert(key, 2, &gocb.UpsertOptions{Timeout: short}))(t)
	wantEqual(t, content[int](t, key), 2)
}

func TestUnlockWithTheWrongCas(t *testing.T) {
	key := newKey(t)
	cas := lock(t, key)
	wantErr(t, collection.Unlock(key, cas+1, &gocb.UnlockOptions{Timeout: short}), gocb.ErrCasMismatch)
	_, err := collection.Upsert(key, 2, &gocb.UpsertOptions{Timeout: short})
	wantLocked(t, err)
}

func TestUnlockOfAnUnlockedDocument(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 1).Cas()
	wantErr(t, collection.Unlock(key, cas, &gocb.UnlockOptions{Timeout: short}), gocb.ErrDocumentNotLocked)
}

func TestUnlockOfAMissingDocument(t *testing.T) {
	wantErr(t, collection.Unlock(newKey(t), 1, &gocb.UnlockOptions{Timeout: short}), gocb.ErrDocumentNotFound)
}

func TestLockEndsByItself(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.GetAndLock(key, time.Second, nil))(t)
	must(collection.Upsert(key, 2, &gocb.UpsertOptions{Timeout: expiryDeadline}))(t)
	wantEqual(t, content[int](t, key), 2)
}
