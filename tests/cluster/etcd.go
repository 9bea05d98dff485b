package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// unixPathMax is the longest path that fits the kernel's sockaddr_un.
const unixPathMax = 107

type etcd struct {
	server *embed.Etcd
	url    string
}

// startEtcd serves a single-member etcd on a unix socket below dir, so that any
// number of control planes run beside each other without agreeing on ports.
func startEtcd(dir string) (*etcd, error) {
	socket := filepath.Join(dir, "etcd.sock")
	if len(socket) > unixPathMax {
		return nil, fmt.Errorf("etcd's socket path %s is longer than %d bytes: choose a shorter --dir", socket, unixPathMax)
	}
	config := embed.NewConfig()
	config.Dir = filepath.Join(dir, "etcd")
	config.LogLevel = "error"
	// The data of a test need not survive a power cut, only a killed process.
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	// One member has no peers: it listens for none, and what it advertises
	// (etcd insists on a host and port) is never dialled.
	nowhere := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = nowhere
	config.AdvertiseClientUrls = nowhere
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", config.Dir, err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return &etcd{server: server, url: "unix://" + socket}, nil
	case err := <-server.Err():
		server.Close()
		return nil, fmt.Errorf("serve etcd in %s: %w", config.Dir, err)
	case <-time.After(readyWithin):
		server.Close()
		return nil, fmt.Errorf("etcd in %s is not ready after %s", config.Dir, readyWithin)
	}
}

func (e *etcd) stop() {
	e.server.Close()
}
