//! The thread that writes, and the lines between it and the loops.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::StoreError;
use super::copies::Media;
use super::records::Place;
use super::writer::Writer;
use crate::clock;
use crate::durability::{Ask, News};
use crate::engine::time::Time;

/// One loop's line to the thread that writes.
#[derive(Debug)]
pub struct StorePort {
    loop_index: u16,
    messages: Sender<Message>,
    mailbox: Arc<Mailbox>,
}

/// The thread that writes. Dropped without [`StoreHandle::finish`], it ends the thread,
/// and leaves an unclean end.
#[derive(Debug)]
pub struct StoreHandle {
    messages: Sender<Message>,
    /// Taken when it is waited for.
    thread: Option<JoinHandle<Result<(), StoreError>>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    news: Mutex<Vec<News>>,
    /// Set after news were put there.
    is_full: AtomicBool,
}

enum Message {
    Ask(u16, Ask),
    End(Ending),
}

#[derive(Clone, Copy)]
enum Ending {
    Clean { left_ms: u64 },
    AsItIs,
}

impl StorePort {
    /// Asks; never blocks. The loop is woken when there is news of it.
    pub fn ask(&self, ask: Ask) {
        // The thread is gone only when all is over, and nobody waits for news any more.
        let _ = self.messages.send(Message::Ask(self.loop_index, ask));
    }

    /// What there is to tell this loop, in order. Costs one load while there is
    /// nothing.
    pub fn take_news(&self) -> Vec<News> {
        let flag = &self.mailbox.is_full;
        if !flag.load(Ordering::Relaxed) || !flag.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.mailbox.lock())
    }
}

impl StoreHandle {
    /// Makes the end a clean one, after all loops have stopped judging requests:
    /// `left_ms` is what the longest lease that is not recorded has left, or this
    /// start's own wait if that is longer. Lets go of the directory.
    ///
    /// # Errors
    /// Something could not be written: the end stays an unclean one.
    pub fn finish(mut self, left_ms: u64) -> Result<(), StoreError> {
        self.end(Ending::Clean { left_ms })
    }

    fn end(&mut self, ending: Ending) -> Result<(), StoreError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        // The thread ends by such a message only.
        let _ = self.messages.send(Message::End(ending));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // To end as it is writes nothing that could fail.
        let _ = self.end(Ending::AsItIs);
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread with what it writes to, for so many loops.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start<M, P>(
    writer: Writer<M, P>,
    loops: u16,
    wake: impl Fn(u16) + Send + 'static,
) -> io::Result<(Vec<StorePort>, StoreHandle)>
where
    M: Media + Send + 'static,
    P: Place + Send + 'static,
{
    let (messages, to_handle) = mpsc::channel();
    let port = |loop_index| StorePort {
        loop_index,
        messages: messages.clone(),
        mailbox: Arc::default(),
    };
    let ports: Vec<StorePort> = (0..loops).map(port).collect();
    let mailboxes = ports.iter().map(|port| Arc::clone(&port.mailbox)).collect();
    let post = Post { mailboxes, wake };
    let thread = thread::Builder::new()
        .name("state".into())
        .spawn(move || run(writer, &to_handle, &post))?;
    let handle = StoreHandle {
        messages,
        thread: Some(thread),
    };
    Ok((ports, handle))
}

/// Everything that arrives while something is written goes into the next write.
fn run<M: Media, P: Place>(
    mut writer: Writer<M, P>,
    messages: &Receiver<Message>,
    post: &Post<impl Fn(u16)>,
) -> Result<(), StoreError> {
    let mut has_written = false;
    loop {
        let mut message = match has_written {
            true => messages.try_recv().ok(),
            false => wait(messages, writer.core.poll_timeout()),
        };
        while let Some(received) = message {
            match received {
                Message::Ask(loop_index, ask) => writer.core.handle_ask(loop_index, ask),
                Message::End(Ending::Clean { left_ms }) => return writer.finish(left_ms),
                Message::End(Ending::AsItIs) => return Ok(()),
            }
            message = messages.try_recv().ok();
        }
        has_written = writer.write();
        post.deliver(|| writer.core.poll_news());
    }
}

/// The next message; `None` once it is `until`.
fn wait(messages: &Receiver<Message>, until: Option<Time>) -> Option<Message> {
    let nobody = Message::End(Ending::AsItIs);
    let Some(until) = until else {
        return Some(messages.recv().unwrap_or(nobody));
    };
    let nanos = until.as_nanos().saturating_sub(clock::now().as_nanos());
    match messages.recv_timeout(Duration::from_nanos(nanos)) {
        Ok(message) => Some(message),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(nobody),
    }
}

/// Where news go.
struct Post<W> {
    mailboxes: Vec<Arc<Mailbox>>,
    wake: W,
}

impl<W: Fn(u16)> Post<W> {
    /// Wakes each loop that there is news for once.
    fn deliver(&self, mut poll_news: impl FnMut() -> Option<(u16, News)>) {
        let mut of_loops = BTreeMap::<u16, Vec<News>>::new();
        while let Some((loop_index, news)) = poll_news() {
            of_loops.entry(loop_index).or_default().push(news);
        }
        for (loop_index, news) in of_loops {
            let mailbox = &self.mailboxes[usize::from(loop_index)];
            mailbox.lock().extend(news);
            mailbox.is_full.store(true, Ordering::Release);
            (self.wake)(loop_index);
        }
    }
}
