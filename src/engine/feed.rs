//! A feed: what an engine tells to any number of listeners.
//!
//! Each listener has a bounded queue of its own. One that is slow loses the oldest entries and finds
//! their number in their place; it holds up neither the engine nor the others. One that is dropped is
//! forgotten with the next entry.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use super::outlet::Patience;

/// What a feed carries.
pub(crate) trait Entry: Clone {
    /// Stands for this many entries that a slow listener lost.
    fn missed(count: u64) -> Self;
}

/// The engine's end. Whoever puts something in has the wakers woken later, without any lock.
#[derive(Debug)]
pub(crate) struct Feed<T> {
    listeners: Vec<Weak<FeedQueue<T>>>,
    limit: usize,
    closed: bool,
}

/// A listener's end: a queue that the engine puts entries into.
#[derive(Debug)]
pub(crate) struct FeedQueue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct State<T> {
    entries: VecDeque<T>,
    missed: u64,
    waker: Option<Waker>,
    closed: bool,
}

impl<T: Entry> Feed<T> {
    /// A feed whose listeners each have room for `limit` entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self { listeners: Vec::new(), limit: limit.max(1), closed: false }
    }

    /// Another listener: it gets what is put in from now on.
    pub(crate) fn listen(&mut self) -> Arc<FeedQueue<T>> {
        let state = State { entries: VecDeque::new(), missed: 0, waker: None, closed: self.closed };
        let queue = Arc::new(FeedQueue {
            state: Mutex::new(state),
            ready: Condvar::new(),
            limit: self.limit,
        });
        self.listeners.push(Arc::downgrade(&queue));
        queue
    }

    /// Whether anybody listens.
    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners.iter().any(|l| l.strong_count() > 0)
    }

    /// Puts an entry into every listener's queue. Tasks that wait for it are added to `wakers`.
    pub(crate) fn put(&mut self, entry: &T, wakers: &mut Vec<Waker>) {
        self.listeners.retain(|listener| {
            let Some(queue) = listener.upgrade() else { return false };
            wakers.extend(queue.put(entry.clone()));
            true
        });
    }

    /// Nothing more comes.
    pub(crate) fn close(&mut self, wakers: &mut Vec<Waker>) {
        self.closed = true;
        for queue in self.listeners.iter().filter_map(Weak::upgrade) {
            let waker = {
                let mut state = queue.state.lock();
                state.closed = true;
                state.waker.take()
            };
            wakers.extend(waker);
            queue.ready.notify_all();
        }
    }
}

impl<T: Entry> FeedQueue<T> {
    fn put(&self, entry: T) -> Option<Waker> {
        let mut state = self.state.lock();
        if state.entries.len() >= self.limit {
            state.entries.pop_front();
            state.missed += 1;
        }
        state.entries.push_back(entry);
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        waker
    }

    /// The next entry. With none there it waits for `patience`; `None` when nothing came.
    pub(crate) fn take(&self, patience: Patience) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(entry) = state.next() {
                return Some(entry);
            }
            if state.closed {
                return None;
            }
            match patience {
                Patience::None => return None,
                Patience::Until(deadline) => {
                    if self.ready.wait_until(&mut state, deadline).timed_out() {
                        return state.next();
                    }
                }
                Patience::Forever => self.ready.wait(&mut state),
            }
        }
    }

    /// Whether nothing more comes.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Has `waker` woken when something is put in. Says whether there is something to look at already.
    #[cfg(feature = "async")]
    pub(crate) fn wake_when_ready(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        // What it replaces may be the last of another task: it is dropped without the lock.
        let _replaced = state.waker.replace(waker.clone());
        let ready = !state.entries.is_empty() || state.closed;
        drop(state);
        ready
    }
}

impl<T: Entry> State<T> {
    fn next(&mut self) -> Option<T> {
        match std::mem::take(&mut self.missed) {
            0 => self.entries.pop_front(),
            missed => Some(T::missed(missed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Told {
        Number(u32),
        Missed(u64),
    }

    impl Entry for Told {
        fn missed(count: u64) -> Self {
            Self::Missed(count)
        }
    }

    fn put(feed: &mut Feed<Told>, numbers: impl IntoIterator<Item = u32>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        numbers.into_iter().for_each(|n| feed.put(&Told::Number(n), &mut wakers));
        wakers
    }

    fn all(queue: &FeedQueue<Told>) -> Vec<Told> {
        std::iter::from_fn(|| queue.take(Patience::None)).collect()
    }

    #[test]
    fn every_listener_gets_everything_from_then_on() {
        let mut feed = Feed::new(4);
        put(&mut feed, [1]);
        let first = feed.listen();
        put(&mut feed, [2]);
        let second = feed.listen();
        put(&mut feed, [3]);
        assert_eq!(all(&first), [Told::Number(2), Told::Number(3)]);
        assert_eq!(all(&second), [Told::Number(3)]);
    }

    #[test]
    fn a_slow_listener_loses_the_oldest_and_is_told_how_many() {
        let mut feed = Feed::new(2);
        let (slow, quick) = (feed.listen(), feed.listen());
        for n in 0..5 {
            put(&mut feed, [n]);
            assert_eq!(all(&quick), [Told::Number(n)]);
        }
        assert_eq!(all(&slow), [Told::Missed(3), Told::Number(3), Told::Number(4)]);
        put(&mut feed, [5]);
        assert_eq!(all(&slow), [Told::Number(5)]);
    }

    #[test]
    fn a_dropped_listener_is_forgotten() {
        let mut feed = Feed::new(2);
        let kept = feed.listen();
        for _ in 0..100 {
            drop(feed.listen());
            put(&mut feed, [0]);
        }
        assert_eq!(feed.listeners.len(), 1);
        drop(kept);
        put(&mut feed, [0]);
        assert!(feed.listeners.is_empty());
    }

    #[test]
    fn whoever_waits_is_woken_by_an_entry_and_by_the_end() {
        let mut feed = Feed::new(2);
        let queue = feed.listen();
        let waiting = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            (waiting.take(Patience::Forever), waiting.take(Patience::Forever))
        });
        put(&mut feed, [7]);
        feed.close(&mut Vec::new());
        assert_eq!(thread.join().unwrap(), (Some(Told::Number(7)), None));
        assert!(queue.is_closed() && feed.listen().is_closed());
        let soon = crate::runtime::instant() + Duration::from_millis(1);
        assert_eq!(queue.take(Patience::Until(soon)), None);
    }

    #[test]
    fn a_task_is_woken_once_for_what_it_waits_for() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut feed = Feed::new(2);
        let queue = feed.listen();
        queue.state.lock().waker = Some(Arc::clone(&count).into());
        put(&mut feed, [1, 2]).into_iter().for_each(Waker::wake);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        queue.state.lock().waker = Some(Arc::clone(&count).into());
        let mut wakers = Vec::new();
        feed.close(&mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }
}
