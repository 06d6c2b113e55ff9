package conformance

import (
	"testing"

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
