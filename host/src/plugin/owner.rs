//! The task that owns one plugin: connects, starts children, begins sessions, and begins anew.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::supervise::Restarts;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::call::Wire;
use super::connect::connect;
use super::process::{Process, RunFolder, SpawnError};
use super::session::{Board, End, SessionState, SessionView, serve};
use super::{Observer, Settings};
use crate::clock;
use crate::leader::Standing;
use crate::tasks::Tasks;

/// How long a child whose session ended may take to end by itself, so that the log can say how.
const OWN_END: Duration = Duration::from_millis(500);

/// Owner of one plugin.
pub(crate) struct Owner {
    settings: Arc<Settings>,
    standing: watch::Receiver<Standing>,
    observer: Arc<dyn Observer>,
    board: Board,
    tasks: Tasks,
}

/// What an attempt at a session came to.
enum Attempt {
    /// There was a session; it has ended.
    Served,
    /// There was none.
    Failed,
}

impl Owner {
    pub(crate) fn new(
        settings: Arc<Settings>,
        standing: watch::Receiver<Standing>,
        observer: Arc<dyn Observer>,
        board: Board,
        tasks: Tasks,
    ) -> Self {
        Self {
            settings,
            standing,
            observer,
            board,
            tasks,
        }
    }

    /// Runs until the host stops.
    pub(crate) async fn run(self) {
        match &self.settings.endpoint {
            Endpoint::Unix(socket) => self.attend(socket).await,
            Endpoint::Https { .. } => {
                self.board.away("https:// endpoints are not built yet".to_owned());
                self.tasks.stop_token().cancelled().await;
            }
            Endpoint::Spawn { program, args } => self.supervise(program, args).await,
        }
        self.board.ended();
    }

    /// One session after another at `socket`.
    async fn attend(&self, socket: &Path) {
        let stop = self.tasks.stop_token();
        let mut pauses = Restarts::new(self.settings.timing.reconnect);
        while !stop.is_cancelled() {
            let turn = async {
                if matches!(self.attempt(socket).await, Attempt::Served) {
                    pauses.reset();
                }
                sleep(pauses.ended_after(Duration::ZERO)).await;
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = turn => {}
            }
        }
    }

    /// Tries for a session at `socket`, and serves it.
    async fn attempt(&self, socket: &Path) -> Attempt {
        let settings = &self.settings;
        let connection = match connect(socket, &settings.allowed_uids, settings.timing.handshake).await {
            Ok(connection) => connection,
            Err(error) => {
                self.board.away(chain(&error));
                return Attempt::Failed;
            }
        };
        let wire = Wire::new(
            Arc::from(settings.name.as_str()),
            connection,
            Arc::clone(&self.observer),
            Arc::clone(&self.board.gatekeeper().activity),
        );
        // A session's future is large.
        let session = Box::pin(serve(settings, &self.board, wire, self.standing.clone()));
        match session.await {
            End::Incompatible(why) => {
                self.board.incompatible(why.to_string());
                Attempt::Failed
            }
            end @ (End::NoDescription(_) | End::Drained) => {
                self.board.away(end.to_string());
                Attempt::Failed
            }
            end @ (End::Stream | End::Health { .. } | End::AnotherProcess) => {
                self.board.away(end.to_string());
                Attempt::Served
            }
        }
    }

    /// One child after another.
    async fn supervise(&self, program: &str, args: &[String]) {
        let stop = self.tasks.stop_token();
        let mut restarts = Restarts::new(self.settings.timing.restart);
        let mut folder = None;
        loop {
            let started = clock::now();
            match self.start_child((program, args), &mut folder) {
                Ok((child, socket)) => match self.run_child(child, &socket).await {
                    ChildEnd::Stopped => return,
                    ChildEnd::Ended(how) => self.board.away(how),
                },
                Err(error) => self.board.away(error.to_string()),
            }
            let pause = restarts.ended_after(clock::now().saturating_since(started));
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    fn start_child(
        &self,
        command: (&str, &[String]),
        folder: &mut Option<RunFolder>,
    ) -> Result<(Process, PathBuf), SpawnError> {
        let folder = match folder {
            Some(folder) => folder,
            None => folder.insert(RunFolder::create(&self.settings.run_root)?),
        };
        let socket = folder.next_socket();
        let child = Process::start(command, &socket, &self.settings.name, &self.tasks)?;
        tracing::info!(
            pid = child.id(),
            "plugin {} started: {}",
            self.settings.name,
            self.settings.endpoint
        );
        Ok((child, socket))
    }

    /// Serves a child until it ends, its session ends, or the host stops; nothing of it is left then.
    async fn run_child(&self, mut child: Process, socket: &Path) -> ChildEnd {
        let end = tokio::select! {
            biased;
            () = self.tasks.stop_token().cancelled() => ChildEnd::Stopped,
            how = child.exited() => ChildEnd::Ended(format!("its process ended ({how})")),
            why = self.attend_child(socket) => {
                // Mostly it is the end of the process that ended the session, and that is what should be told.
                let how = timeout(OWN_END, child.exited()).await;
                ChildEnd::Ended(how.map_or(why, |how| format!("its process ended ({how})")))
            }
        };
        self.board.ended();
        let how = child.end(self.settings.timing.grace).await;
        self.board.nobody_lives();
        tracing::debug!("plugin {}: {how}", self.settings.name);
        end
    }

    /// The one session of a child, which has some time to begin it. Says why there is none any more.
    async fn attend_child(&self, socket: &Path) -> String {
        let limit = self.settings.timing.start_limit;
        let (before, mut view) = (self.sessions(), self.board.subscribe());
        let is_settled =
            |view: &SessionView| view.session > before || view.state == SessionState::Incompatible;
        let overdue = async {
            if timeout(limit, view.wait_for(is_settled)).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let session = async {
            let mut pauses = Restarts::new(self.settings.timing.reconnect);
            while matches!(self.attempt(socket).await, Attempt::Failed) {
                sleep(pauses.ended_after(Duration::ZERO)).await;
            }
        };
        tokio::select! {
            biased;
            () = session => "its session ended".to_owned(),
            () = overdue => format!("its process did not begin a session within {limit:?}"),
        }
    }

    fn sessions(&self) -> u64 {
        self.board.subscribe().borrow().session
    }
}

/// How it ended with a child.
enum ChildEnd {
    /// The host stops.
    Stopped,
    /// By itself or by its session's end, for people.
    Ended(String),
}

/// An error with all its causes.
fn chain(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
