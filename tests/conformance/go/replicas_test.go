package conformance

import (
	"testing"

	"github.com/couchbase/gocb/v2"
)

func TestGetAnyReplica(t *testing.T) {
	key := newKey(t)
	cas := upsert(t, key, 7).Cas()
	result := must(collection.GetAnyReplica(key, nil))(t)
	var got int
	ok(t, result.Content(&got))
	wantEqual(t, got, 7)
	wantEqual(t, result.Cas(), cas)
	wantTrue(t, !result.IsReplica() || hasReplicas(), "the active copy answers")
}

func TestGetAnyReplicaOfAMissingDocument(t *testing.T) {
	_, err := collection.GetAnyReplica(newKey(t), nil)
	wantErr(t, err, gocb.ErrDocumentUnretrievable)
}

func TestGetAllReplicas(t *testing.T) {
	key := newKey(t)
	upsert(t, key, 7)
	stream := must(collection.GetAllReplicas(key, nil))(t)
	first := stream.Next()
	if first == nil {
		t.Fatal("no copy was found")
	}
	var got int
	ok(t, first.Content(&got))
	wantEqual(t, got, 7)
	if second := stream.Next(); second != nil {
		wantTrue(t, hasReplicas(), "there is only one copy")
		wantTrue(t, first.IsReplica() != second.IsReplica(), "each copy answers once")
		wantTrue(t, stream.Next() == nil, "there are two copies")
	} else {
		wantTrue(t, !first.IsReplica(), "the active copy answers")
	}
	ok(t, stream.Close())
}

func TestGetAllReplicasOfAMissingDocument(t *testing.T) {
	stream := must(collection.GetAllReplicas(newKey(t), nil))(t)
	wantTrue(t, stream.Next() == nil, "there is no copy")
	ok(t, stream.Close())
}

func TestLookupInAnyReplica(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	specs := []gocb.LookupInSpec{gocb.GetSpec("list[1]", nil), gocb.ExistsSpec("absent", nil)}
	result := must(collection.LookupInAnyReplica(key, specs, nil))(t)
	wantEqual(t, at[int](t, result.LookupInResult, 0), 20)
	wantTrue(t, !result.Exists(1), "the path does not exist")
	wantTrue(t, !result.IsReplica() || hasReplicas(), "the active copy answers")
}

func TestLookupInAllReplicas(t *testing.T) {
	key := newKey(t)
	upsert(t, key, lookupDoc())
	stream := must(collection.LookupInAllReplicas(key, []gocb.LookupInSpec{gocb.GetSpec("n", nil)}, nil))(t)
	first := stream.Next()
	if first == nil {
		t.Fatal("no copy was found")
	}
	wantEqual(t, at[int](t, first.LookupInResult, 0), 1)
	if second := stream.Next(); second != nil {
		wantTrue(t, hasReplicas(), "there is only one copy")
		wantTrue(t, first.IsReplica() != second.IsReplica(), "each copy answers once")
		wantTrue(t, stream.Next() == nil, "there are two copies")
	} else {
		wantTrue(t, !first.IsReplica(), "the active copy answers")
	}
	ok(t, stream.Close())
}
