//! The SDK's lists, maps, sets and queues, which are made of sub-document operations.

use serde_json::json;

use crate::support::*;

#[test]
fn list() {
    run(async |collection, key| {
        let list = collection.list(&key, None);
        list.append("b").await.unwrap();
        list.prepend("a").await.unwrap();
        list.append("c").await.unwrap();
        assert_eq!(list.len().await.unwrap(), 3);
        assert_eq!(list.get::<String>(1).await.unwrap(), "b");
        list.remove(0).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(["b", "c"]));
    });
}

#[test]
fn map() {
    run(async |collection, key| {
        let map = collection.map(&key, None);
        map.insert("one", 1).await.unwrap();
        map.insert("two", 2).await.unwrap();
        assert_eq!(map.get::<i64>("two").await.unwrap(), 2);
        map.remove("one").await.unwrap();
        assert!(!map.contains_key("one").await.unwrap());
        assert_eq!(map.len().await.unwrap(), 1);
    });
}

#[test]
fn set() {
    run(async |collection, key| {
        let set = collection.set(&key, None);
        assert!(set.insert("a").await.unwrap());
        assert!(!set.insert("a").await.unwrap());
        assert!(set.insert("b").await.unwrap());
        assert_eq!(set.len().await.unwrap(), 2);
        assert!(set.contains(&"a".to_string()).await.unwrap());
    });
}

#[test]
fn queue() {
    run(async |collection, key| {
        let queue = collection.queue(&key, None);
        queue.push(1).await.unwrap();
        queue.push(2).await.unwrap();
        assert_eq!(queue.pop::<i64>().await.unwrap(), 1);
        assert_eq!(queue.pop::<i64>().await.unwrap(), 2);
        assert!(queue.is_empty().await.unwrap());
    });
}
