package conformance

import (
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

const (
	hundred = 100 * time.Second
	day     = 24 * time.Hour
)

func upsertExpiring(t *testing.T, key string, expiry time.Duration) *gocb.MutationResult {
	t.Helper()
	return must(collection.Upsert(key, object{"v": 1}, &gocb.UpsertOptions{Expiry: expiry}))(t)
}

func TestDocumentWithoutExpiry(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	wantTrue(t, expiryIsUnset(t, key), "there is no expiry")
}

// expiryIsUnset knows both ways in which the SDK says "never": the zero time and the epoch.
func expiryIsUnset(t *testing.T, key string) bool {
	t.Helper()
	at := storedExpiry(t, key)
	return at.IsZero() || at.Unix() == 0
}

func TestUpsertWithExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	wantExpiresIn(t, key, hundred)
}

func TestInsertWithExpiry(t *testing.T) {
	key := newKey(t)
	must(collection.Insert(key, 1, &gocb.InsertOptions{Expiry: hundred}))(t)
	wantExpiresIn(t, key, hundred)
}

func TestReplaceWithExpiry(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.Replace(key, 2, &gocb.ReplaceOptions{Expiry: hundred}))(t)
	wantExpiresIn(t, key, hundred)
}

// From 30 days on the SDK sends a point in time instead of a number of seconds.
func TestExpiryBeyondThirtyDays(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, 60*day)
	wantExpiresIn(t, key, 60*day)
}

func TestUpsertedDocumentExpires(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, time.Second)
	waitUntilGone(t, key)
	wantTrue(t, !exists(t, key), "the document is gone")
}

func TestExpiredDocumentMayBeInsertedAgain(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, time.Second)
	waitUntilGone(t, key)
	must(collection.Insert(key, 2, nil))(t)
	wantEqual(t, content[int](t, key), 2)
}

func TestReplaceOfAnExpiredDocument(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, time.Second)
	waitUntilGone(t, key)
	_, err := collection.Replace(key, 2, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestTouchedDocumentExpires(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 1)
	must(collection.Touch(key, time.Second, nil))(t)
	waitUntilGone(t, key)
}

func TestTouchSetsAnExpiry(t *testing.T) {
	key := newKey(t)
	before := upsert(t, key, 1).Cas()
	result := must(collection.Touch(key, hundred, nil))(t)
	wantTrue(t, result.Cas() != 0 && result.Cas() != before, "touching changes the CAS")
	wantExpiresIn(t, key, hundred)
}

func TestTouchWithZeroClearsTheExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	must(collection.Touch(key, 0, nil))(t)
	wantTrue(t, expiryIsUnset(t, key), "there is no expiry")
}

func TestTouchOfAMissingDocument(t *testing.T) {
	_, err := collection.Touch(newKey(t), hundred, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestGetAndTouch(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 7)
	var got int
	ok(t, must(collection.GetAndTouch(key, hundred, nil))(t).Content(&got))
	wantEqual(t, got, 7)
	wantExpiresIn(t, key, hundred)
}

func TestGetAndTouchOfAMissingDocument(t *testing.T) {
	_, err := collection.GetAndTouch(newKey(t), hundred, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
}

func TestUpsertClearsTheExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	upsert(t, key, 2)
	wantTrue(t, expiryIsUnset(t, key), "there is no expiry")
}

func TestUpsertPreservesTheExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	must(collection.Upsert(key, 2, &gocb.UpsertOptions{PreserveExpiry: true}))(t)
	wantEqual(t, content[int](t, key), 2)
	wantExpiresIn(t, key, hundred)
}

func TestReplacePreservesTheExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	must(collection.Replace(key, 2, &gocb.ReplaceOptions{PreserveExpiry: true}))(t)
	wantExpiresIn(t, key, hundred)
}

func TestMutateInPreservesTheExpiry(t *testing.T) {
	key := newKey(t)
	upsertExpiring(t, key, hundred)
	specs := []gocb.MutateInSpec{gocb.UpsertSpec("w", 2, nil)}
	must(collection.MutateIn(key, specs, &gocb.MutateInOptions{PreserveExpiry: true}))(t)
	wantExpiresIn(t, key, hundred)
}

func TestMutateInWithExpiry(t *testing.T) {
	key := newKey(t)
	upsert(t, key, object{"v": 1})
	specs := []gocb.MutateInSpec{gocb.UpsertSpec("w", 2, nil)}
	must(collection.MutateIn(key, specs, &gocb.MutateInOptions{Expiry: hundred}))(t)
	wantExpiresIn(t, key, hundred)
}

func TestCounterCreatedWithExpiryExpires(t *testing.T) {
	key := newKey(t)
	must(collection.Binary().Increment(key, &gocb.IncrementOptions{Initial: 5, Delta: 1, Expiry: time.Second}))(t)
	waitUntilGone(t, key)
}
