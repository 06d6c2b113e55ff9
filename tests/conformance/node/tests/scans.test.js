'use strict'
// Range, prefix and sampling scans, with documents and without.

const assert = require('node:assert/strict')
const { after, before, describe, it } = require('node:test')
const couchbase = require('couchbase')
const { connect, env, fresh } = require('./support')

const COUNT = 60

describe('scans', () => {
  let cluster
  let collection
  let prefix
  let state
  const stored = new Map()

  before(async () => {
    cluster = await connect()
    collection = cluster.bucket(env('STAVE_BUCKET')).defaultCollection()
    prefix = `${fresh('scan')}:`
    state = new couchbase.MutationState()
    for (let n = 0; n < COUNT; n += 1) {
      const key = `${prefix}${String(n).padStart(2, '0')}`
      const written = await collection.upsert(key, { n })
      state.add(written.token)
      stored.set(key, { n })
    }
  })
  after(() => cluster.close())

  const scan = (type, options = {}) => collection.scan(type, { consistentWith: state, timeout: 20000, ...options })

  it('show the documents of a prefix', async () => {
    const found = await scan(new couchbase.PrefixScan(prefix))
    const shown = new Map(found.map((one) => [one.id, one.content]))
    assert.deepEqual(shown, stored)
  })

  it('show keys alone', async () => {
    const found = await scan(new couchbase.PrefixScan(prefix), { idsOnly: true })
    assert.deepEqual(found.map((one) => one.id).sort(), [...stored.keys()].sort())
    assert.ok(found.every((one) => one.content === undefined))
  })

  it('come in small batches', async () => {
    const found = await scan(new couchbase.PrefixScan(prefix), { batchItemLimit: 1, concurrency: 4 })
    assert.deepEqual(found.map((one) => one.id).sort(), [...stored.keys()].sort())
  })

  it('leave exclusive ends out', async () => {
    const [from, to] = ['10', '20'].map((end) => new couchbase.ScanTerm(prefix + end, true))
    const found = await scan(new couchbase.RangeScan(from, to), { idsOnly: true })
    const expected = [...stored.keys()].filter((key) => key > `${prefix}10` && key < `${prefix}20`)
    assert.deepEqual(found.map((one) => one.id).sort(), expected.sort())
  })

  it('take no more samples than asked for', async () => {
    const found = await scan(new couchbase.SamplingScan(7, 42), { idsOnly: true })
    assert.ok(found.length <= 7)
    assert.equal(new Set(found.map((one) => one.id)).size, found.length)
  })
})
