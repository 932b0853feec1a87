//! Keys of the terminal. They are read by a thread: reading them blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;

/// How long the thread takes to notice that it is no longer needed.
const POLL: Duration = Duration::from_millis(100);
/// Keys that wait to be handled: more than anyone types between two pictures.
const WAITING_MAX: usize = 64;

/// What comes from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Key(KeyEvent),
    /// The size has changed: the picture is drawn again.
    Resized,
}

/// Keys as they are pressed.
pub(super) struct Keys {
    pressed: mpsc::Receiver<Input>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keys {
    pub(super) fn listen() -> std::io::Result<Self> {
        let (sender, pressed) = mpsc::channel(WAITING_MAX);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("keys".into())
            .spawn(move || while !over.load(Ordering::Relaxed) && forward(&sender) {})?;
        Ok(Keys { pressed, is_over, thread: Some(thread) })
    }

    /// The next one; `None` if the terminal is gone.
    pub(super) async fn next(&mut self) -> Option<Input> {
        self.pressed.recv().await
    }
}

/// Passes on what comes within a moment; false if there is no terminal any more.
fn forward(sender: &mpsc::Sender<Input>) -> bool {
    let read = || Ok::<_, std::io::Error>(if event::poll(POLL)? { Some(event::read()?) } else { None });
    let input = match read() {
        Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => Input::Key(key),
        Ok(Some(Event::Resize(..))) => Input::Resized,
        Ok(_) => return true,
        Err(_) => return false,
    };
    // Keys beyond what waits are dropped, as a terminal does with a full buffer.
    !matches!(sender.try_send(input), Err(mpsc::error::TrySendError::Closed(_)))
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within a poll; a panic in it has been printed.
            let _ = thread.join();
        }
    }
}
