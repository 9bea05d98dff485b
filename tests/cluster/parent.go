package main

import (
	"io"
	"os"
)

// exitWithParent ends this process at the end of its standard input if the
// process that started it asked for that: its pipe closes however it dies, and
// a killed test leaves nothing behind. Without the request the standard input
// means nothing (in a shell's background it is /dev/null, at its end at once).
func exitWithParent() {
	if os.Getenv("BULKHEAD_SPAWNED") != "1" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(exitFailed)
	}()
}
