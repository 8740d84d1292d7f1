//! Rows as they come (`tail`), without loss or repeats: what is in the ledger already, then what the writer announces,
//! and the ledger again whenever announcements were missed. It filters nothing and prints nothing.

use super::reader::{Reader, Rows};
use super::row::Row;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Rows that are read from the files in one go.
const BATCH: usize = 256;
/// How long to wait for a missed row that is not in the file yet (the disk is full, the row waits in memory).
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// An endless sequence of rows; made by [`super::Audit::follow`].
#[derive(Debug)]
pub struct Follow {
    store: PathBuf,
    live: broadcast::Receiver<Arc<Row>>,
    /// The row that is given next.
    next: u64,
    /// The first row that `live` may announce: everything before is in the files only.
    announced: u64,
    /// Rows read from the files, last one first.
    read: Vec<Row>,
    reading: Option<Rows>,
    /// An announcement that came before the rows that precede it had been read.
    early: Option<Arc<Row>>,
}

impl Follow {
    pub(super) fn new(
        store: &Path,
        live: broadcast::Receiver<Arc<Row>>,
        next: u64,
        announced: u64,
    ) -> Follow {
        let store = store.to_owned();
        Follow { store, live, next, announced, read: Vec::new(), reading: None, early: None }
    }

    /// The next row; None when the ledger has been closed. Cancel safe: a row that was not returned comes next time.
    pub async fn next(&mut self) -> io::Result<Option<Arc<Row>>> {
        loop {
            if let Some(row) = self.read.pop() {
                if row.seq >= self.next {
                    self.next = row.seq + 1;
                    return Ok(Some(Arc::new(row)));
                }
                continue;
            }
            if self.next < self.announced {
                self.catch_up().await?;
                continue;
            }
            let row = match self.early.take() {
                Some(row) => row,
                None => match self.live.recv().await {
                    Ok(row) => row,
                    // The next announcement says how far to read.
                    Err(RecvError::Lagged(_)) => continue,
                    Err(RecvError::Closed) => return Ok(None),
                },
            };
            if row.seq > self.next {
                self.announced = row.seq;
                self.early = Some(row);
            } else if row.seq == self.next {
                self.next += 1;
                return Ok(Some(row));
            }
        }
    }

    /// Reads some of the rows from `self.next` on.
    async fn catch_up(&mut self) -> io::Result<()> {
        let (reading, store, next) = (self.reading.take(), self.store.clone(), self.next);
        let read = move || -> io::Result<(Vec<Row>, Option<Rows>)> {
            let mut rows = match reading {
                Some(rows) => rows,
                None => Reader::open(&store)?.rows_from(next, 0),
            };
            let mut batch = Vec::new();
            while batch.len() < BATCH {
                match rows.next() {
                    Some(row) => batch.push(row.map_err(io::Error::other)?),
                    None => return Ok((batch, None)),
                }
            }
            Ok((batch, Some(rows)))
        };
        let (mut batch, reading) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        if batch.is_empty() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        batch.reverse();
        self.read = batch;
        self.reading = reading;
        Ok(())
    }
}
