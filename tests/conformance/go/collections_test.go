package conformance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
)

func TestDefaultCollectionByName(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 7)
	var got int
	ok(t, must(bucket.Scope("_default").Collection("_default").Get(key, nil))(t).Content(&got))
	wantEqual(t, got, 7)
}

// The SDK asks for the collection's id again until the operation's timeout, in case it is just being created.
func TestUnknownCollection(t *testing.T) {
	absent := bucket.Scope("_default").Collection("absent")
	_, err := absent.Get(newKey(t), &gocb.GetOptions{Timeout: short})
	wantErr(t, err, gocb.ErrCollectionNotFound, gocb.ErrTimeout)
	_, err = absent.Upsert(newKey(t), 1, &gocb.UpsertOptions{Timeout: short})
	wantErr(t, err, gocb.ErrCollectionNotFound, gocb.ErrTimeout)
}

func TestUnknownScope(t *testing.T) {
	_, err := bucket.Scope("absent").Collection("absent").Get(newKey(t), &gocb.GetOptions{Timeout: short})
	wantErr(t, err, gocb.ErrScopeNotFound, gocb.ErrCollectionNotFound, gocb.ErrTimeout)
}

func TestDefaultCollectionWorksAfterAnUnknownOne(t *testing.T) {
	key := newKey(t)
	_, err := bucket.Scope("_default").Collection("absent").Get(key, &gocb.GetOptions{Timeout: short})
	wantErr(t, err, gocb.ErrCollectionNotFound, gocb.ErrTimeout)
	upsert(t, key, 1)
	wantEqual(t, content[int](t, key), 1)
}

// newScope makes a scope that is gone after the test.
func newScope(t *testing.T) (*gocb.CollectionManagerV2, string) {
	manager, name := bucket.CollectionsV2(), fmt.Sprintf("go-%08x", rand.Uint32())
	ok(t, manager.CreateScope(name, nil))
	t.Cleanup(func() { _ = manager.DropScope(name, nil) })
	return manager, name
}

func TestCollectionsComeAndGo(t *testing.T) {
	manager, scope := newScope(t)
	settings := gocb.CreateCollectionSettings{MaxExpiry: time.Minute}
	ok(t, manager.CreateCollection(scope, "one", &settings, nil))
	wantErr(t, manager.CreateCollection(scope, "one", &settings, nil), gocb.ErrCollectionExists)
	wantErr(t, manager.CreateScope(scope, nil), gocb.ErrScopeExists)
	wantErr(t, manager.DropCollection(scope, "absent", nil), gocb.ErrCollectionNotFound)
	wantErr(t, manager.DropCollection("absent", "one", nil), gocb.ErrScopeNotFound)
	found := false
	for _, one := range must(manager.GetAllScopes(nil))(t) {
		if one.Name == scope {
			found = true
			wantEqual(t, len(one.Collections), 1)
			wantEqual(t, one.Collections[0].Name, "one")
			wantEqual(t, one.Collections[0].MaxExpiry, time.Minute)
		}
	}
	wantTrue(t, found, "the scope is listed")
	ok(t, manager.DropCollection(scope, "one", nil))
	ok(t, manager.DropScope(scope, nil))
	wantErr(t, manager.DropScope(scope, nil), gocb.ErrScopeNotFound)
}

func TestDocumentsOfCollectionsAreApart(t *testing.T) {
	manager, scope := newScope(t)
	ok(t, manager.CreateCollection(scope, "one", nil, nil))
	key, one := newKey(t), bucket.Scope(scope).Collection("one")
	upsert(t, key, 1)
	must(one.Insert(key, 2, nil))(t)
	wantEqual(t, content[int](t, key), 1)
	must(one.Remove(key, nil))(t)
	_, err := one.Get(key, nil)
	wantErr(t, err, gocb.ErrDocumentNotFound)
	wantEqual(t, content[int](t, key), 1)
	ok(t, manager.DropCollection(scope, "one", nil))
	_, err = one.Get(key, &gocb.GetOptions{Timeout: short})
	wantErr(t, err, gocb.ErrCollectionNotFound, gocb.ErrTimeout)
}

func TestListOfDocument(t *testing.T) {
	key := newKey(t)
	list := collection.List(key)
	ok(t, list.Append("b"))
	ok(t, list.Prepend("a"))
	ok(t, list.Append("c"))
	wantEqual(t, must(list.Size())(t), 3)
	wantEqual(t, must(list.IndexOf("b"))(t), 1)
	ok(t, list.RemoveAt(0))
	wantEqual(t, content[[]string](t, key), []string{"b", "c"})
}

func TestMapOfDocument(t *testing.T) {
	fields := collection.Map(newKey(t))
	ok(t, fields.Add("one", 1))
	ok(t, fields.Add("two", 2))
	var got int
	ok(t, fields.At("two", &got))
	wantEqual(t, got, 2)
	ok(t, fields.Remove("one"))
	wantTrue(t, !must(fields.Exists("one"))(t), "the field is gone")
	wantEqual(t, must(fields.Size())(t), 1)
}

func TestSetOfDocument(t *testing.T) {
	members := collection.Set(newKey(t))
	ok(t, members.Add("a"))
	wantErr(t, members.Add("a"), gocb.ErrPathExists)
	ok(t, members.Add("b"))
	wantTrue(t, must(members.Contains("a"))(t), "the member is there")
	ok(t, members.Remove("a"))
	wantEqual(t, must(members.Size())(t), 1)
}

func TestQueueOfDocument(t *testing.T) {
	queue := collection.Queue(newKey(t))
	ok(t, queue.Push(1))
	ok(t, queue.Push(2))
	var first, second int
	ok(t, queue.Pop(&first))
	ok(t, queue.Pop(&second))
	wantEqual(t, []int{first, second}, []int{1, 2})
	wantEqual(t, must(queue.Size())(t), 0)
}
