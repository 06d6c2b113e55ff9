'use strict'
// Distributed transactions: what is committed is there, what is rolled back leaves no trace.

const assert = require('node:assert/strict')
const { after, before, describe, it } = require('node:test')
const couchbase = require('couchbase')
const { connect, env, fails, fresh, within } = require('./support')

describe('transactions', () => {
  let cluster
  let collection

  before(async () => {
    cluster = await connect({
      transactions: { durabilityLevel: couchbase.DurabilityLevel.None, timeout: 20000 },
    })
    collection = cluster.bucket(env('STAVE_BUCKET')).defaultCollection()
  })
  after(() => cluster.close())

  it('commit several documents at once', async () => {
    const [from, to, gone, made] = [fresh('tx'), fresh('tx'), fresh('tx'), fresh('tx')]
    await collection.upsert(from, { balance: 100 })
    await collection.upsert(to, { balance: 0 })
    await collection.upsert(gone, {})
    await cluster.transactions().run(async (attempt) => {
      const source = await attempt.get(collection, from)
      const target = await attempt.get(collection, to)
      await attempt.replace(source, { balance: source.content.balance - 30 })
      await attempt.replace(target, { balance: target.content.balance + 30 })
      await attempt.insert(collection, made, { by: 'transaction' })
      await attempt.remove(await attempt.get(collection, gone))
      // Not before the commit for anybody else.
      assert.deepEqual((await collection.get(from)).content, { balance: 100 })
      await fails(collection.get(made), couchbase.DocumentNotFoundError)
    })
    assert.deepEqual((await collection.get(from)).content, { balance: 70 })
    assert.deepEqual((await collection.get(to)).content, { balance: 30 })
    assert.deepEqual((await collection.get(made)).content, { by: 'transaction' })
    await fails(collection.get(gone), couchbase.DocumentNotFoundError)
  })

  it('roll everything back when the application fails', async () => {
    const [key, made] = [fresh('tx'), fresh('tx')]
    await collection.upsert(key, { v: 1 })
    await assert.rejects(
      cluster.transactions().run(async (attempt) => {
        const document = await attempt.get(collection, key)
        await attempt.replace(document, { v: 2 })
        await attempt.insert(collection, made, {})
        throw new Error('the application changed its mind')
      }),
      (error) => error.constructor.name === 'TransactionFailedError'
    )
    assert.deepEqual((await collection.get(key)).content, { v: 1 })
    await fails(collection.get(made), couchbase.DocumentNotFoundError)
    const left = await collection.lookupIn(key, [couchbase.LookupInSpec.exists('txn', { xattr: true })])
    assert.equal(left.content[0].value, false)
  })

  it('count up without losing anything when they meet', async () => {
    const key = fresh('tx')
    await collection.upsert(key, { n: 0 })
    // This SDK ends a transaction that meets another one in a failure, and the application runs it again.
    const one = () =>
      within(20000, () =>
        cluster.transactions().run(async (attempt) => {
          const document = await attempt.get(collection, key)
          await attempt.replace(document, { n: document.content.n + 1 })
        })
      )
    await Promise.all(Array.from({ length: 8 }, one))
    assert.deepEqual((await collection.get(key)).content, { n: 8 })
  })
})
