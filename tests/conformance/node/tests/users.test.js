'use strict'
// Users and groups by the SDK's manager, and what their roles allow.

const assert = require('node:assert/strict')
const { after, before, test } = require('node:test')
const couchbase = require('couchbase')
const { connect, env, fails, fresh } = require('./support')

let cluster
let users

before(async () => {
  cluster = await connect()
  users = cluster.users()
})

after(() => cluster.close())

const names = (roles) => roles.map((role) => role.name ?? role.role.name).sort()

test('a user is made, read, listed and dropped', async () => {
  const username = fresh('js-user')
  const roles = [
    { name: 'data_reader', bucket: env('STAVE_BUCKET') },
    { name: 'data_writer', bucket: env('STAVE_BUCKET'), scope: '_default', collection: '_default' },
  ]
  await users.upsertUser({ username, password: 'secret-1', displayName: 'A name', roles })
  const found = await users.getUser(username)
  assert.equal(found.username, username)
  assert.equal(found.displayName, 'A name')
  assert.deepEqual(names(found.roles), ['data_reader', 'data_writer'])
  assert.ok((await users.getAllUsers()).some((user) => user.username === username))
  await users.dropUser(username)
  await fails(() => users.getUser(username), couchbase.UserNotFoundError)
  await fails(() => users.dropUser(username), couchbase.UserNotFoundError)
})

test('a user has the roles of its groups', async () => {
  const [group, username] = [fresh('js-group'), fresh('js-user')]
  const roles = [{ name: 'data_reader', bucket: env('STAVE_BUCKET') }]
  await users.upsertGroup({ name: group, description: 'readers', roles })
  assert.equal((await users.getGroup(group)).description, 'readers')
  assert.ok((await users.getAllGroups()).some((found) => found.name === group))
  await users.upsertUser({ username, password: 'secret-1', groups: [group], roles: [] })
  assert.deepEqual(names((await users.getUser(username)).effectiveRoles), ['data_reader'])
  await users.dropUser(username)
  await users.dropGroup(group)
  await fails(() => users.getGroup(group), couchbase.GroupNotFoundError)
})

test('roles are listed', async () => {
  const listed = names(await users.getRoles())
  for (const role of ['admin', 'bucket_admin', 'data_dcp_reader', 'data_reader', 'data_writer']) {
    assert.ok(listed.includes(role), role)
  }
})

test('a user does what its roles allow, and changes its password', async () => {
  const [username, key] = [fresh('js-user'), fresh('js-key')]
  await cluster.bucket(env('STAVE_BUCKET')).defaultCollection().upsert(key, { a: 1 })
  const roles = [{ name: 'data_reader', bucket: env('STAVE_BUCKET') }]
  await users.upsertUser({ username, password: 'secret-1', roles })
  const own = await connect({ username, password: 'secret-1' })
  const documents = own.bucket(env('STAVE_BUCKET')).defaultCollection()
  assert.deepEqual((await documents.get(key)).content, { a: 1 })
  await assert.rejects(() => documents.upsert(key, { a: 2 }, { timeout: 2000 }), couchbase.CouchbaseError)
  await own.users().changePassword('secret-2')
  await own.close()
  const again = await connect({ username, password: 'secret-2' })
  assert.deepEqual((await again.bucket(env('STAVE_BUCKET')).defaultCollection().get(key)).content, { a: 1 })
  await again.close()
  await users.dropUser(username)
})
