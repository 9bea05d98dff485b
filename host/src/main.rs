//! The host's process: command line, runtime, exit code. All else is in the library.

use bulkhead::cli::{self, Stop};
use bulkhead::exit::Exit;
use bulkhead::{run, telemetry};

fn main() -> Exit {
    let load = || cli::configure(std::env::args_os(), |name| std::env::var(name).ok());
    let config = match load() {
        Ok(config) => config,
        Err(stop) => return stop.print(),
    };
    let log = config.log.clone();
    let detail = match telemetry::init(log.format, log.verbosity, log.filter) {
        Ok(detail) => detail,
        Err(error) => return Stop::usage(telemetry::Chain(&error)).print(),
    };
    // An error means that a provider is installed already: as good.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(error = %telemetry::Chain(&error), "cannot start the runtime");
            return Exit::Failure;
        }
    };
    let exit = runtime.block_on(run::run(config, Box::new(load), detail));
    // What still runs was given its time, or the user asked not to wait.
    runtime.shutdown_background();
    exit
}
