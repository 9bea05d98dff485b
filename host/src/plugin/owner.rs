//! The task that owns one plugin: connects, starts children, begins sessions, and begins anew.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::endpoint::Endpoint;
use bulkhead_core::supervise::Restarts;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::crew::Crew;
use super::directory::Sockets;
use super::front::Front;
use super::place::{self, Address, Places};
use super::process::{Process, RunFolder, SpawnError};
use super::session::{SessionState, SessionView};
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
    front: Arc<Front>,
    /// Where its processes listen, if it was found in the plugins directory.
    found: Option<Sockets>,
    tasks: Tasks,
}

impl Owner {
    pub(crate) fn new(
        settings: Arc<Settings>,
        standing: watch::Receiver<Standing>,
        observer: Arc<dyn Observer>,
        front: Arc<Front>,
        tasks: Tasks,
    ) -> Self {
        Self {
            settings,
            standing,
            observer,
            front,
            found: None,
            tasks,
        }
    }

    /// Instead of its endpoint, it attends what was found.
    pub(crate) fn with_sockets(mut self, sockets: Sockets) -> Self {
        self.found = Some(sockets);
        self
    }

    /// Runs until the host stops.
    pub(crate) async fn run(self) {
        match (self.found.clone(), &self.settings.endpoint) {
            (Some(Sockets(places)), _) => self.attend(places, false).await,
            (None, Endpoint::Unix(socket)) => {
                let places = watch::Sender::default();
                tokio::select! {
                    () = self.attend(places.subscribe(), false) => {}
                    () = place::follow(socket, &places) => {}
                }
            }
            (None, Endpoint::Https { host, port }) => {
                let (host, port) = (host.clone(), *port);
                self.attend(place::fixed(Address::Network { host, port }), false)
                    .await;
            }
            (None, Endpoint::Spawn { program, args }) => self.supervise(program, args).await,
        }
        self.front.ended();
    }

    /// Keeps sessions with whatever is at `places`, until the host stops or, if `once`, a session has ended.
    async fn attend(&self, places: Places, once: bool) {
        let crew = Crew::new(
            Arc::clone(&self.settings),
            Arc::clone(&self.observer),
            Arc::clone(&self.front),
            self.standing.clone(),
        );
        tokio::select! {
            () = self.tasks.stop_token().cancelled() => {}
            never = self.front.gatekeeper().keep() => match never {},
            () = crew.attend(places, once) => {}
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
                    ChildEnd::Ended(how) => self.front.away(how),
                },
                Err(error) => self.front.away(error.to_string()),
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
        let child = Process::start(command, &socket, &self.settings, &self.tasks)?;
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
        self.front.ended();
        let how = child.end(self.settings.timing.grace).await;
        self.front.nobody_lives();
        tracing::debug!("plugin {}: {how}", self.settings.name);
        end
    }

    /// The one session of a child, which has some time to begin it. Says why there is none any more.
    async fn attend_child(&self, socket: &Path) -> String {
        let limit = self.settings.timing.start_limit;
        let (before, mut view) = (self.sessions(), self.front.subscribe());
        let is_settled =
            |view: &SessionView| view.session > before || view.state == SessionState::Incompatible;
        let overdue = async {
            if timeout(limit, view.wait_for(is_settled)).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let session = self.attend(place::fixed(Address::Socket(socket.to_owned())), true);
        tokio::select! {
            biased;
            () = session => "its session ended".to_owned(),
            () = overdue => format!("its process did not begin a session within {limit:?}"),
        }
    }

    fn sessions(&self) -> u64 {
        self.front.subscribe().borrow().session
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
pub(crate) fn chain(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
