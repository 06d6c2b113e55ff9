// The helper against a cluster.
'use strict'

const assert = require('node:assert')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { after, before, test } = require('node:test')
const couchbase = require('couchbase')
const stave = require('..')

// Of the first operation connecting is a part.
const timeouts = { kvTimeout: 10000 }
let s, cluster, orders

before(async () => {
  s = await stave.dev({ nodes: 2 })
  cluster = await couchbase.connect(s.connectionString, { username: s.username, password: s.password, timeouts })
  orders = cluster.bucket('default').defaultCollection()
})

after(async () => {
  if (cluster) await cluster.close()
  if (s) await s.close()
})

test('temporary failures are tried again', async () => {
  await s.reset()
  await orders.upsert('a', 1)
  await s.fail({ opcode: 'get', times: 3 })
  assert.strictEqual((await orders.get('a')).content, 1)
})

test('requests are delayed', async () => {
  await s.reset()
  await orders.upsert('a', 1)
  await s.delay(150, { opcode: 'get' })
  const begun = performance.now()
  await orders.get('a')
  assert.ok(performance.now() - begun >= 149)
  const told = await s.heal()
  assert.deepStrictEqual(told.nodes.map(node => node.injections), [[], []])
})

test('a reset removes documents and starts nodes', async () => {
  await orders.upsert('a', 1)
  await s.stop(2)
  const told = await s.reset()
  assert.ok(told.nodes.every(node => node.may_serve))
  await assert.rejects(orders.get('a'), couchbase.DocumentNotFoundError)
})

test('a cluster begins with its seed file, and so it does after a reset', async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'stave-'))
  const seedFile = path.join(folder, 'seed.json')
  fs.writeFileSync(seedFile, '{"buckets": {"default": {"documents": {"a": {"n": 1}}}}}')
  const seeded = await stave.dev({ seedFile })
  try {
    const login = { username: seeded.username, password: seeded.password, timeouts }
    const sdk = await couchbase.connect(seeded.connectionString, login)
    const documents = sdk.bucket('default').defaultCollection()
    assert.deepStrictEqual((await documents.get('a')).content, { n: 1 })
    await documents.remove('a')
    await seeded.reset()
    assert.deepStrictEqual((await documents.get('a')).content, { n: 1 })
    await sdk.close()
  } finally {
    await seeded.close()
    fs.rmSync(folder, { recursive: true })
  }
})

test('refused orders say why', async () => {
  await assert.rejects(s.kill(9), /404: there is no node 9/)
  await assert.rejects(s.thaw(1), /is not frozen/)
})

test('a cluster that does not start says why', async () => {
  await assert.rejects(stave.dev({ nodes: 1, replicas: 5 }), /--replicas 5: give a number/)
  await assert.rejects(stave.dev({ binary: '/nowhere/stave' }), /\/nowhere\/stave is not an executable file/)
})

test('closing ends the process', async () => {
  const other = await stave.dev()
  await other.close()
  await other.close()
  assert.throws(() => process.kill(other.pid, 0), { code: 'ESRCH' })
})
