package conformance

import (
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/couchbase/gocb/v2"
)

func newName(t *testing.T) string {
	t.Helper()
	return "go-" + newKey(t)[len(newKey(t))-12:]
}

func roleNames(roles []gocb.Role) string {
	names := make([]string, 0, len(roles))
	for _, role := range roles {
		names = append(names, role.Name)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

func userRoleNames(roles []gocb.RoleAndOrigins) string {
	plain := make([]gocb.Role, 0, len(roles))
	for _, role := range roles {
		plain = append(plain, role.Role)
	}
	return roleNames(plain)
}

func TestUserIsMadeReadAndDropped(t *testing.T) {
	users, name, bucketName := cluster.Users(), newName(t), os.Getenv("STAVE_BUCKET")
	user := gocb.User{
		Username:    name,
		DisplayName: "A name",
		Password:    "secret-1",
		Roles: []gocb.Role{
			{Name: "data_reader", Bucket: bucketName},
			{Name: "data_writer", Bucket: bucketName, Scope: "_default", Collection: "_default"},
		},
	}
	ok(t, users.UpsertUser(user, nil))
	found := must(users.GetUser(name, nil))(t)
	wantEqual(t, found.Username, name)
	wantEqual(t, found.DisplayName, "A name")
	wantEqual(t, roleNames(found.Roles), "data_reader data_writer")
	listed := false
	for _, user := range must(users.GetAllUsers(nil))(t) {
		listed = listed || user.Username == name
	}
	wantTrue(t, listed, "the user is listed")
	ok(t, users.DropUser(name, nil))
	_, err := users.GetUser(name, nil)
	wantErr(t, err, gocb.ErrUserNotFound)
	wantErr(t, users.DropUser(name, nil), gocb.ErrUserNotFound)
}

func TestUserHasTheRolesOfItsGroups(t *testing.T) {
	users, name, group := cluster.Users(), newName(t), newName(t)
	roles := []gocb.Role{{Name: "data_reader", Bucket: os.Getenv("STAVE_BUCKET")}}
	ok(t, users.UpsertGroup(gocb.Group{Name: group, Description: "readers", Roles: roles}, nil))
	wantEqual(t, must(users.GetGroup(group, nil))(t).Description, "readers")
	ok(t, users.UpsertUser(gocb.User{Username: name, Password: "secret-1", Groups: []string{group}}, nil))
	wantEqual(t, userRoleNames(must(users.GetUser(name, nil))(t).EffectiveRoles), "data_reader")
	ok(t, users.DropUser(name, nil))
	ok(t, users.DropGroup(group, nil))
	_, err := users.GetGroup(group, nil)
	wantErr(t, err, gocb.ErrGroupNotFound)
}

func TestUserMayWhatItsRolesSay(t *testing.T) {
	users, name, key := cluster.Users(), newName(t), newKey(t)
	upsert(t, key, object{"a": 1})
	roles := []gocb.Role{{Name: "data_reader", Bucket: os.Getenv("STAVE_BUCKET")}}
	ok(t, users.UpsertUser(gocb.User{Username: name, Password: "secret-1", Roles: roles}, nil))
	own := must(connect(name, "secret-1"))(t)
	documents := own.Bucket(os.Getenv("STAVE_BUCKET")).DefaultCollection()
	must(documents.Get(key, &gocb.GetOptions{Timeout: long}))(t)
	_, err := documents.Upsert(key, object{"a": 2}, &gocb.UpsertOptions{Timeout: short})
	wantTrue(t, err != nil, "a reader does not write")
	ok(t, own.Users().ChangePassword("secret-2", nil))
	ok(t, own.Close(nil))
	again := must(connect(name, "secret-2"))(t)
	must(again.Bucket(os.Getenv("STAVE_BUCKET")).DefaultCollection().Get(key, &gocb.GetOptions{Timeout: long}))(t)
	ok(t, again.Close(nil))
	ok(t, users.DropUser(name, nil))
}
