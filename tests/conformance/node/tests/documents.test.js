'use strict'
// Documents: every operation with its documented errors.

const assert = require('node:assert/strict')
const { after, before, describe, it } = require('node:test')
const couchbase = require('couchbase')
const { connect, env, fails, fresh, within } = require('./support')

describe('documents', () => {
  let cluster
  let collection

  before(async () => {
    cluster = await connect()
    collection = cluster.bucket(env('STAVE_BUCKET')).defaultCollection()
  })
  after(() => cluster.close())

  it('are written, read and removed', async () => {
    const key = fresh('node')
    const written = await collection.insert(key, { a: 1, text: 'größer' })
    const read = await collection.get(key)
    assert.deepEqual(read.content, { a: 1, text: 'größer' })
    assert.ok(read.cas.toString() === written.cas.toString())
    await fails(collection.insert(key, {}), couchbase.DocumentExistsError)
    assert.ok((await collection.exists(key)).exists)
    await collection.replace(key, [1, 2])
    assert.deepEqual((await collection.get(key)).content, [1, 2])
    await collection.remove(key)
    assert.ok(!(await collection.exists(key)).exists)
    await fails(collection.get(key), couchbase.DocumentNotFoundError)
    await fails(collection.replace(key, {}), couchbase.DocumentNotFoundError)
    await fails(collection.remove(key), couchbase.DocumentNotFoundError)
    await fails(collection.touch(key, 10), couchbase.DocumentNotFoundError)
  })

  it('are changed only at the right CAS', async () => {
    const key = fresh('node')
    const first = await collection.upsert(key, { n: 1 })
    await collection.upsert(key, { n: 2 })
    await fails(collection.replace(key, { n: 3 }, { cas: first.cas }), couchbase.CasMismatchError)
    await fails(collection.remove(key, { cas: first.cas }), couchbase.CasMismatchError)
    const now = await collection.get(key)
    assert.deepEqual(now.content, { n: 2 })
    await collection.replace(key, { n: 3 }, { cas: now.cas })
  })

  it('expire', async () => {
    const key = fresh('node')
    await collection.upsert(key, { v: 1 }, { expiry: 1 })
    const read = await collection.get(key, { withExpiry: true })
    assert.ok(read.expiryTime > Date.now() / 1000 - 5)
    await within(10000, () => fails(collection.get(key), couchbase.DocumentNotFoundError))
  })

  it('keep their expiry if asked to', async () => {
    const key = fresh('node')
    await collection.upsert(key, { v: 1 }, { expiry: 600 })
    await collection.upsert(key, { v: 2 }, { preserveExpiry: true })
    const kept = await collection.get(key, { withExpiry: true })
    assert.ok(kept.expiryTime > Date.now() / 1000 + 500)
    await collection.getAndTouch(key, 0)
    const endless = await collection.get(key, { withExpiry: true })
    assert.ok(!endless.expiryTime)
  })

  it('are locked', async () => {
    const key = fresh('node')
    await collection.upsert(key, { v: 1 })
    const locked = await collection.getAndLock(key, 15)
    await fails(collection.upsert(key, {}, { timeout: 300 }), couchbase.AmbiguousTimeoutError).catch(() =>
      fails(collection.upsert(key, {}, { timeout: 300 }), couchbase.UnambiguousTimeoutError)
    )
    await collection.unlock(key, locked.cas)
    await fails(collection.unlock(key, locked.cas), couchbase.DocumentNotLockedError)
    await collection.upsert(key, { v: 2 })
  })

  it('count, and are appended to', async () => {
    const key = fresh('node')
    const binary = collection.binary()
    await fails(binary.increment(key, 1), couchbase.DocumentNotFoundError)
    assert.equal((await binary.increment(key, 5, { initial: 40 })).value, 40)
    assert.equal((await binary.increment(key, 5)).value, 45)
    assert.equal((await binary.decrement(key, 50)).value, 0)
    const text = fresh('node')
    await collection.upsert(text, Buffer.from('b'), { transcoder: raw })
    await binary.append(text, Buffer.from('c'))
    await binary.prepend(text, Buffer.from('a'))
    assert.equal((await collection.get(text, { transcoder: raw })).content.toString(), 'abc')
  })

  it('are read and changed in parts', async () => {
    const key = fresh('node')
    await collection.upsert(key, { a: { b: [1, 2] }, n: 1 })
    const part = await collection.lookupIn(key, [
      couchbase.LookupInSpec.get('a.b[1]'),
      couchbase.LookupInSpec.exists('a.c'),
      couchbase.LookupInSpec.count('a.b'),
      couchbase.LookupInSpec.get('missing'),
    ])
    assert.equal(part.content[0].value, 2)
    assert.equal(part.content[1].value, false)
    assert.equal(part.content[2].value, 2)
    assert.equal(part.content[3].error.constructor.name, 'PathNotFoundError')
    const changed = await collection.mutateIn(key, [
      couchbase.MutateInSpec.arrayAppend('a.b', 3),
      couchbase.MutateInSpec.increment('n', 4),
      couchbase.MutateInSpec.upsert('x', { by: 'node' }, { xattr: true }),
    ])
    assert.equal(changed.content[1].value, 5)
    assert.deepEqual((await collection.get(key)).content, { a: { b: [1, 2, 3] }, n: 5 })
    const hidden = await collection.lookupIn(key, [couchbase.LookupInSpec.get('x.by', { xattr: true })])
    assert.equal(hidden.content[0].value, 'node')
    await fails(collection.mutateIn(key, [couchbase.MutateInSpec.insert('n', 1)]), couchbase.PathExistsError)
    await fails(collection.mutateIn(key, [couchbase.MutateInSpec.replace('no', 1)]), couchbase.PathNotFoundError)
    await fails(collection.mutateIn(key, [couchbase.MutateInSpec.arrayAppend('n', 1)]), couchbase.PathMismatchError)
  })

  it('are made by a change of a part', async () => {
    const key = fresh('node')
    const specs = [couchbase.MutateInSpec.insert('a.b', 1, { createPath: true })]
    await fails(collection.mutateIn(key, specs), couchbase.DocumentNotFoundError)
    await collection.mutateIn(key, specs, { storeSemantics: couchbase.StoreSemantics.Insert })
    assert.deepEqual((await collection.get(key)).content, { a: { b: 1 } })
    await fails(
      collection.mutateIn(key, specs, { storeSemantics: couchbase.StoreSemantics.Insert }),
      couchbase.DocumentExistsError
    )
  })

  it('hold values at the limit and none beyond it', async () => {
    const key = fresh('node')
    const limit = 20 * 1024 * 1024
    await collection.upsert(key, Buffer.alloc(limit, 1), { transcoder: raw })
    assert.equal((await collection.get(key, { transcoder: raw })).content.length, limit)
    await fails(
      collection.upsert(key, Buffer.alloc(limit + 1, 1), { transcoder: raw }),
      couchbase.ValueTooLargeError
    )
    await collection.remove(key)
  })

  it('are there in unknown collections neither', async () => {
    const unknown = cluster.bucket(env('STAVE_BUCKET')).scope('none').collection('none')
    await assert.rejects(unknown.get('k', { timeout: 400 }), (error) => /Timeout|NotFound/.test(error.constructor.name))
  })

  // A bytes-only value, as the SDK sends it without a transcoder of its own.
  const raw = {
    encode: (value) => [value, (3 << 24) | 3],
    decode: (bytes) => bytes,
  }

  for (const [name, level] of Object.entries({
    majority: couchbase.DurabilityLevel.Majority,
    majorityAndPersist: couchbase.DurabilityLevel.MajorityAndPersistOnMaster,
    persistToMajority: couchbase.DurabilityLevel.PersistToMajority,
  })) {
    it(`are written durably: ${name}`, async () => {
      const key = fresh('node')
      try {
        await collection.upsert(key, { v: 1 }, { durabilityLevel: level })
      } catch (error) {
        assert.equal(error.constructor.name, 'DurabilityImpossibleError')
        await fails(collection.get(key), couchbase.DocumentNotFoundError)
        console.log('durability: refused')
        return
      }
      assert.deepEqual((await collection.get(key)).content, { v: 1 })
      await collection.remove(key, { durabilityLevel: level })
      console.log('durability: honoured')
    })
  }

  it('are written many at a time', async () => {
    const keys = Array.from({ length: 2000 }, () => fresh('node'))
    await Promise.all(keys.map((key, n) => collection.upsert(key, { n })))
    const read = await Promise.all(keys.map((key) => collection.get(key)))
    read.forEach((document, n) => assert.deepEqual(document.content, { n }))
  })
})
