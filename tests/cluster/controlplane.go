package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// readyWithin bounds the start: a control plane that is not ready by then never
// will be, and its log says why.
const readyWithin = 60 * time.Second

// controlPlane is what the command line of the control-plane component says.
// All paths are absolute.
type controlPlane struct {
	dir      string
	port     int
	tokens   string
	auditLog string
}

// runControlPlane serves etcd and the API server until SIGTERM, and prints
// "ready URL" on its standard output once /readyz is OK.
func runControlPlane(args []string) int {
	options, err := parseControlPlane(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "control-plane: %v\n", err)
		return exitUsage
	}
	exitWithParent()
	if err := options.serve(); err != nil {
		fmt.Fprintf(os.Stderr, "control-plane: %v\n", err)
		return exitFailed
	}
	return 0
}

func parseControlPlane(args []string) (controlPlane, error) {
	var options controlPlane
	flags := flag.NewFlagSet("control-plane", flag.ContinueOnError)
	flags.StringVar(&options.dir, "dir", "", "`folder` for certificates and etcd's data; kept between starts")
	flags.IntVar(&options.port, "port", 0, "TCP `port` of the API server on 127.0.0.1")
	flags.StringVar(&options.tokens, "tokens", "", "static token `file` (token,user,uid,\"groups\"); default DIR/tokens.csv")
	flags.StringVar(&options.auditLog, "audit-log", "", "write an audit `file`: one JSON line with metadata per finished request")
	if err := flags.Parse(args); err != nil {
		return options, err
	}
	if flags.NArg() > 0 {
		return options, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if options.dir == "" {
		return options, errors.New("--dir is required")
	}
	if options.port < 1 || options.port > 65535 {
		return options, fmt.Errorf("--port %d is not a TCP port", options.port)
	}
	if options.tokens == "" {
		options.tokens = filepath.Join(options.dir, "tokens.csv")
	}
	for _, path := range []*string{&options.dir, &options.tokens, &options.auditLog} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return options, err
		}
		*path = absolute
	}
	return options, nil
}

func (c controlPlane) serve() error {
	keys, err := ensureKeys(c.dir)
	if err != nil {
		return err
	}
	store, err := startEtcd(c.dir)
	if err != nil {
		return err
	}
	defer store.stop()

	server := apiServer{controlPlane: c, keys: keys, etcdURL: store.url}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	go server.announce(ctx)
	return server.run()
}
