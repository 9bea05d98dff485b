// Command bulkhead-cluster is a real Kubernetes control plane in one process,
// for tests and for the demo.
//
// It is one binary with a subcommand per component, one file each, so that
// further components (controller manager, scheduler, kubelet, proxy) are new
// rows of the commands table and nothing else.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
)

// Exit codes: 1 is a component that failed, 2 a command line that is wrong.
const (
	exitFailed = 1
	exitUsage  = 2
)

// commands maps a subcommand to the component it runs. A component returns the
// exit code of the process.
var commands = map[string]func(args []string) int{
	"control-plane": runControlPlane,
}

func main() {
	if len(os.Args) < 2 {
		usage()
		os.Exit(exitUsage)
	}
	run, known := commands[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "unknown component %q\n", os.Args[1])
		usage()
		os.Exit(exitUsage)
	}
	os.Exit(run(os.Args[2:]))
}

func usage() {
	names := make([]string, 0, len(commands))
	for name := range commands {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(os.Stderr, "usage: bulkhead-cluster {%s} FLAGS (each has --help)\n", strings.Join(names, "|"))
}
