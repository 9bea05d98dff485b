//! Which node sets the plugin has got in this session.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

/// How many sets a session remembers to have sent; with more, the oldest are sent again.
const REMEMBERED: usize = 256;

/// Digests of the sets that were put, or are being put, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SentSets(Mutex<VecDeque<(String, Arc<OnceCell<()>>)>>);

impl SentSets {
    /// Puts the set with `put` unless that was done; calls for one digest wait for each other.
    pub(crate) async fn ensure_put<E>(
        &self,
        digest: &str,
        put: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let cell = self.cell(digest);
        cell.get_or_try_init(|| put).await.copied()
    }

    /// The plugin does not know the set any more.
    pub(crate) fn forget(&self, digest: &str) {
        self.sets().retain(|(sent, _)| sent != digest);
    }

    fn cell(&self, digest: &str) -> Arc<OnceCell<()>> {
        let mut sets = self.sets();
        if let Some((_, cell)) = sets.iter().find(|(sent, _)| sent == digest) {
            return Arc::clone(cell);
        }
        if sets.len() == REMEMBERED {
            sets.pop_front();
        }
        let cell = Arc::new(OnceCell::new());
        sets.push_back((digest.to_owned(), Arc::clone(&cell)));
        cell
    }

    fn sets(&self) -> std::sync::MutexGuard<'_, VecDeque<(String, Arc<OnceCell<()>>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    async fn put(sets: &SentSets, digest: &str, count: &AtomicU32) {
        let once = async {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(())
        };
        sets.ensure_put(digest, once).await.unwrap();
    }

    #[tokio::test]
    async fn a_set_is_put_once_until_it_is_forgotten() {
        let (sets, count) = (SentSets::default(), AtomicU32::new(0));
        tokio::join!(put(&sets, "a", &count), put(&sets, "a", &count));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        sets.forget("a");
        put(&sets, "a", &count).await;
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_failed_put_is_tried_again() {
        let (sets, count) = (SentSets::default(), AtomicU32::new(0));
        assert_eq!(sets.ensure_put("a", async { Err("no") }).await, Err("no"));
        put(&sets, "a", &count).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn the_memory_is_bounded() {
        let (sets, count) = (SentSets::default(), AtomicU32::new(0));
        for number in 0..2 * REMEMBERED {
            put(&sets, &number.to_string(), &count).await;
        }
        assert_eq!(sets.sets().len(), REMEMBERED);
        put(&sets, "0", &count).await;
        assert_eq!(
            count.load(Ordering::SeqCst),
            u32::try_from(2 * REMEMBERED).unwrap() + 1
        );
    }
}
