'use strict'
// What the SDK's managers ask over HTTP: buckets, scopes and collections.

const assert = require('node:assert/strict')
const { after, before, describe, it } = require('node:test')
const couchbase = require('couchbase')
const { connect, env, fails, fresh, within } = require('./support')

describe('managers', () => {
  let cluster
  const made = []

  before(async () => {
    cluster = await connect()
  })
  after(async () => {
    for (const name of made) {
      await cluster.buckets().dropBucket(name).catch((error) => {
        assert.equal(error.constructor.name, 'BucketNotFoundError')
      })
    }
    await cluster.close()
  })

  async function makeBucket(settings) {
    const name = fresh('node')
    await cluster.buckets().createBucket({
      name,
      ramQuotaMB: 100,
      numReplicas: 0,
      bucketType: couchbase.BucketType.Couchbase,
      ...settings,
    })
    made.push(name)
    return name
  }

  it('make, read, change and drop a bucket', async () => {
    const name = await makeBucket({
      flushEnabled: true,
      maxExpiry: 60,
      compressionMode: couchbase.CompressionMode.Active,
      evictionPolicy: couchbase.EvictionPolicy.FullEviction,
      conflictResolutionType: couchbase.ConflictResolutionType.SequenceNumber,
      minimumDurabilityLevel: couchbase.DurabilityLevel.None,
    })
    const settings = await cluster.buckets().getBucket(name)
    assert.equal(settings.name, name)
    assert.equal(settings.ramQuotaMB, 100)
    assert.equal(settings.numReplicas, 0)
    assert.equal(settings.flushEnabled, true)
    assert.equal(settings.maxExpiry, 60)
    assert.equal(settings.compressionMode, couchbase.CompressionMode.Active)
    assert.equal(settings.evictionPolicy, couchbase.EvictionPolicy.FullEviction)
    await fails(makeAgain(name), couchbase.BucketExistsError)
    await cluster.buckets().updateBucket({ ...settings, ramQuotaMB: 150 })
    assert.equal((await cluster.buckets().getBucket(name)).ramQuotaMB, 150)
    assert.ok((await cluster.buckets().getAllBuckets()).some((bucket) => bucket.name === name))
    await cluster.buckets().dropBucket(name)
    await fails(cluster.buckets().getBucket(name), couchbase.BucketNotFoundError)
    await fails(cluster.buckets().dropBucket(name), couchbase.BucketNotFoundError)
  })

  function makeAgain(name) {
    return cluster.buckets().createBucket({ name, ramQuotaMB: 100, numReplicas: 0 })
  }

  it('empty a bucket that allows it', async () => {
    const name = await makeBucket({ flushEnabled: false })
    const documents = cluster.bucket(name).defaultCollection()
    await documents.upsert('k', { a: 1 })
    await fails(cluster.buckets().flushBucket(name), couchbase.BucketNotFlushableError)
    const settings = await cluster.buckets().getBucket(name)
    await cluster.buckets().updateBucket({ ...settings, flushEnabled: true })
    await cluster.buckets().flushBucket(name)
    await fails(documents.get('k'), couchbase.DocumentNotFoundError)
    await fails(cluster.buckets().flushBucket('node-none'), couchbase.BucketNotFoundError)
  })

  it('make, list, change and drop scopes and collections', async () => {
    const bucket = cluster.bucket(env('STAVE_BUCKET'))
    const manager = bucket.collections()
    const scope = fresh('s')
    await manager.createScope(scope)
    await fails(manager.createScope(scope), couchbase.ScopeExistsError)
    await manager.createCollection('c', scope, { maxExpiry: 30 })
    await manager.createCollection('forever', scope, { maxExpiry: -1 })
    await fails(manager.createCollection('c', scope), couchbase.CollectionExistsError)
    await fails(manager.createCollection('c', 'none'), couchbase.ScopeNotFoundError)
    const listed = (await manager.getAllScopes()).find((one) => one.name === scope)
    assert.deepEqual(
      listed.collections.map((one) => [one.name, one.maxExpiry]).sort(),
      [['c', 30], ['forever', -1]]
    )
    const collection = bucket.scope(scope).collection('c')
    await within(10000, () => collection.upsert('k', { v: 1 }))
    const expiry = (await collection.get('k', { withExpiry: true })).expiryTime
    assert.ok(expiry <= Date.now() / 1000 + 31)
    await manager.updateCollection('c', scope, { maxExpiry: 0 })
    await manager.dropCollection('c', scope)
    await fails(manager.dropCollection('c', scope), couchbase.CollectionNotFoundError)
    await manager.dropScope(scope)
    await fails(manager.dropScope(scope), couchbase.ScopeNotFoundError)
  })

  it('say that the cluster is there', async () => {
    const pinged = await cluster.ping({ serviceTypes: [couchbase.ServiceType.KeyValue] })
    assert.ok(pinged.id)
    const diagnosed = await cluster.diagnostics()
    assert.equal(diagnosed.version, 2)
  })
})
