// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtime "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"cuslice.dev/dra/api/v1alpha1"
)

const (
	claimA = "6a1f0c1e-96b8-4f0c-9d6e-5f8a2a9d1b11"
	claimB = "77777777-96b8-4f0c-9d6e-5f8a2a9d1b11"
	share1 = "11111111-aaaa-4f0c-9d6e-5f8a2a9d1b11"
	share2 = "22222222-aaaa-4f0c-9d6e-5f8a2a9d1b11"
	uuid   = "GPU-18cf7b1c-0000-0000-0000-000000000000"
)

type node struct {
	t       *testing.T
	root    string
	store   Store
	library Library
}

// newNode has an installed library and the base spec of one GPU.
func newNode(t *testing.T) *node {
	n := &node{t: t, root: t.TempDir()}
	n.store = Store{Directory: filepath.Join(n.root, "cdi")}
	n.library = Library{Directory: filepath.Join(n.root, "lib", "build-1")}
	n.put(filepath.Join(n.library.Directory, "libcuslice-cuda.so"), "")
	n.put(filepath.Join(n.library.Directory, "libcuslice-nvml.so"), "")
	n.put(n.library.preloadFile(), n.library.preloadText())
	n.put(filepath.Join(n.store.Directory, "base.json"), `{"cdiVersion": "0.5.0", "kind": "cuslice.dev/gpu", "devices": [
	  {"name": "`+uuid+`", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "BASE=1"]}}]}`)
	return n
}

func (n *node) put(path, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) share(claim, request, shareID string, injection v1alpha1.Injection) ClaimShare {
	share := ClaimShare{Share: Share{claim, request, "gpu-0", shareID}, Injection: injection}
	share.SliceDirectory = filepath.Join(n.root, "slices", share.SliceID())
	for _, file := range []string{"limits", "state", "attach"} {
		n.put(filepath.Join(share.SliceDirectory, file), "")
	}
	return share
}

func (n *node) write(claim string, shares ...ClaimShare) {
	n.t.Helper()
	spec, err := ClaimSpec(claim, n.library, shares)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.store.Write(claim, spec); err != nil {
		n.t.Fatal(err)
	}
}

// inject does what a container runtime does, with the library that runtimes use.
func (n *node) inject(env []string, ids ...string) *runtime.Spec {
	n.t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.store.Directory), cdi.WithAutoRefresh(false))
	if err != nil {
		n.t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		n.t.Fatal(errs)
	}
	container := &runtime.Spec{Process: &runtime.Process{Env: env}}
	if _, err := cache.InjectDevices(container, ids...); err != nil {
		n.t.Fatal(err)
	}
	return container
}

func mountAt(container *runtime.Spec, path string) *runtime.Mount {
	for i := range container.Mounts {
		if container.Mounts[i].Destination == path {
			return &container.Mounts[i]
		}
	}
	return nil
}

func TestARuntimeInjectsTheShare(t *testing.T) {
	n := newNode(t)
	share := n.share(claimA, "gpu", share1, v1alpha1.InjectionFile)
	n.write(claimA, share)
	container := n.inject([]string{"LD_PRELOAD=/opt/own.so"}, share.DeviceIDs("cuslice.dev/gpu", uuid)...)

	directory := "/run/cuslice/slice/" + claimA + ".gpu." + share1
	for path, want := range map[string]struct{ source, access string }{
		directory:            {share.SliceDirectory, "ro"},
		directory + "/state": {share.SliceDirectory + "/state", "rw"},
		n.library.Directory:  {n.library.Directory, "ro"},
		"/etc/ld.so.preload": {n.library.preloadFile(), "ro"},
	} {
		mount := mountAt(container, path)
		if mount == nil || mount.Source != want.source || !slices.Contains(mount.Options, want.access) {
			t.Errorf("mount at %s is %+v: want %s of %s", path, mount, want.access, want.source)
		}
	}
	if slices.Contains(mountAt(container, n.library.Directory).Options, "noexec") {
		t.Error("the library is mounted noexec: it can't be mapped")
	}
	at := func(path string) int {
		return slices.IndexFunc(container.Mounts, func(m runtime.Mount) bool { return m.Destination == path })
	}
	if at(directory) > at(directory+"/state") {
		t.Error("the slice's directory is mounted over its state")
	}
	env := container.Process.Env
	for _, want := range []string{"BASE=1", "NVIDIA_VISIBLE_DEVICES=void", "LD_PRELOAD=/opt/own.so"} {
		if !slices.Contains(env, want) {
			t.Errorf("environment %q: want %s in it", env, want)
		}
	}
	if container.Linux != nil && (len(container.Linux.Devices) > 0 || container.Linux.Resources != nil) {
		t.Errorf("%+v: the share adds devices or rules", container.Linux)
	}
}

func TestInjectionByEnvironmentOrNotAtAll(t *testing.T) {
	n := newNode(t)
	env := n.share(claimA, "gpu", share1, v1alpha1.InjectionEnv)
	none := n.share(claimB, "gpu", share1, v1alpha1.InjectionNone)
	n.write(claimA, env)
	n.write(claimB, none)

	container := n.inject(nil, Kind+"="+env.Name())
	want := "LD_PRELOAD=" + n.library.Directory + "/libcuslice-cuda.so:" + n.library.Directory + "/libcuslice-nvml.so"
	if !slices.Contains(container.Process.Env, want) || mountAt(container, "/etc/ld.so.preload") != nil {
		t.Errorf("Env: %+v, %q: want %s and no preload file", container.Mounts, container.Process.Env, want)
	}

	container = n.inject(nil, Kind+"="+none.Name())
	if len(container.Mounts) != 2 || mountAt(container, "/run/cuslice/slice/"+none.Name()) == nil {
		t.Errorf("None: %+v: want the slice's two mounts alone", container.Mounts)
	}
}

func TestSharesOfAContainerDoNotCollide(t *testing.T) {
	n := newNode(t)
	shares := []ClaimShare{
		n.share(claimA, "gpu", share1, v1alpha1.InjectionFile),
		n.share(claimA, "gpu", share2, v1alpha1.InjectionFile),
		n.share(claimA, "pair/big", share1, v1alpha1.InjectionFile),
	}
	other := n.share(claimB, "gpu", share1, v1alpha1.InjectionFile)
	n.write(claimA, shares...)
	n.write(claimB, other)

	var ids []string
	sliceIDs := map[string]bool{}
	for _, share := range append(shares, other) {
		ids = append(ids, Kind+"="+share.Name())
		sliceIDs[share.SliceID()] = true
		if len(share.SliceID()) > 63 {
			t.Errorf("slice id %s is longer than the broker takes", share.SliceID())
		}
	}
	if len(sliceIDs) != 4 {
		t.Errorf("slice ids %v: want 4", sliceIDs)
	}
	container := n.inject(nil, ids...)
	for _, share := range append(shares, other) {
		mount := mountAt(container, "/run/cuslice/slice/"+share.Name())
		if mount == nil || mount.Source != share.SliceDirectory {
			t.Errorf("share %s has mount %+v", share.Name(), mount)
		}
	}
}

func TestASpecThatWouldLeaveAContainerWithoutLimitsIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(n *node, share *ClaimShare)
		want  string
	}{
		"library missing": {func(n *node, _ *ClaimShare) { os.Remove(n.library.Directory + "/libcuslice-nvml.so") }, "libcuslice-nvml.so"},
		"library private": {func(n *node, _ *ClaimShare) { os.Chmod(n.library.Directory+"/libcuslice-cuda.so", 0o600) }, "every user may read"},
		"preload missing": {func(n *node, _ *ClaimShare) { os.Remove(n.library.preloadFile()) }, "ld.so.preload"},
		"preload of another build": {func(n *node, _ *ClaimShare) {
			n.put(n.library.preloadFile(), "/var/lib/cuslice/lib/build-0/libcuslice-cuda.so\n")
		}, "install this build again"},
		"slice missing":   {func(_ *node, share *ClaimShare) { os.RemoveAll(share.SliceDirectory) }, "limits"},
		"state missing":   {func(_ *node, share *ClaimShare) { os.Remove(share.SliceDirectory + "/state") }, "state"},
		"odd injection":   {func(_ *node, share *ClaimShare) { share.Injection = "Merge" }, "Merge"},
		"another's share": {func(_ *node, share *ClaimShare) { share.ClaimUID = claimB }, claimB},
		"path in request": {func(_ *node, share *ClaimShare) { share.Request = "../../etc" }, "request"},
		"path in share":   {func(_ *node, share *ClaimShare) { share.ShareID = "a/b" }, "share id"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			share := n.share(claimA, "gpu", share1, v1alpha1.InjectionFile)
			c.spoil(n, &share)
			_, err := ClaimSpec(claimA, n.library, []ClaimShare{share})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v: want one with %q", err, c.want)
			}
		})
	}
	n := newNode(t)
	share := n.share(claimA, "gpu", share1, v1alpha1.InjectionFile)
	if _, err := ClaimSpec(claimA, n.library, []ClaimShare{share, share}); err == nil {
		t.Error("one share twice: want an error, since a runtime would drop both")
	}
	if _, err := ClaimSpec(claimA, n.library, nil); err == nil {
		t.Error("no share: want an error, since a runtime refuses the file")
	}
}

func TestWriteReplacesAndComesBackAfterABoot(t *testing.T) {
	n := newNode(t)
	first := n.share(claimA, "gpu", share1, v1alpha1.InjectionFile)
	second := n.share(claimA, "gpu", share2, v1alpha1.InjectionFile)
	n.write(claimA, first)
	n.write(claimA, first, second)
	n.inject(nil, Kind+"="+first.Name(), Kind+"="+second.Name())

	if err := os.RemoveAll(n.store.Directory); err != nil {
		t.Fatal(err)
	}
	n.write(claimA, first)
	n.inject(nil, Kind+"="+first.Name())
	entries, _ := os.ReadDir(n.store.Directory)
	if len(entries) != 1 {
		t.Errorf("%v: want the claim's spec alone", entries)
	}
	if info, _ := entries[0].Info(); info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v: a runtime that is not root can't read it", info.Mode())
	}
}

func TestAFailedWriteLeavesTheOldSpecAndNothingElse(t *testing.T) {
	n := newNode(t)
	share := n.share(claimA, "gpu", share1, v1alpha1.InjectionFile)
	spec, err := ClaimSpec(claimA, n.library, []ClaimShare{share})
	if err != nil {
		t.Fatal(err)
	}
	// A directory in the file's place: the rename fails.
	if err := os.MkdirAll(n.store.path(claimA), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Write(claimA, spec); err == nil || !strings.Contains(err.Error(), claimA) {
		t.Errorf("error %v: want one that names the claim", err)
	}
	left, _ := filepath.Glob(filepath.Join(n.store.Directory, "*"+temporarySuffix))
	if len(left) > 0 {
		t.Errorf("%v: left behind", left)
	}
}

func TestRemoveIsContentWithNothing(t *testing.T) {
	n := newNode(t)
	n.write(claimA, n.share(claimA, "gpu", share1, v1alpha1.InjectionFile))
	for range 2 {
		if err := n.store.Remove(claimA); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(n.store.path(claimA)); err == nil {
		t.Error("the spec is still there")
	}
	if err := n.store.Remove("../base"); err == nil {
		t.Error("a path for a UID: want an error")
	}
}

func TestCollectTakesOrphansAndSparesOthers(t *testing.T) {
	n := newNode(t)
	n.write(claimA, n.share(claimA, "gpu", share1, v1alpha1.InjectionFile))
	n.write(claimB, n.share(claimB, "gpu", share1, v1alpha1.InjectionFile))
	metadata := filePrefix + claimB + "_metadata_gpu.json"
	n.put(filepath.Join(n.store.Directory, metadata), "{}")
	n.put(filepath.Join(n.store.Directory, filePrefix+claimA+".123"+temporarySuffix), "{")
	n.put(filepath.Join(n.store.Directory, "other_"+claimB+".json"), "{}")

	removed, err := n.store.Collect(func(uid string) bool { return uid == claimA })
	if err != nil || !slices.Equal(removed, []string{claimB}) {
		t.Errorf("%v, %v: want %s removed", removed, err, claimB)
	}
	var left []string
	entries, _ := os.ReadDir(n.store.Directory)
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{"base.json", filePrefix + claimA + ".json", metadata, "other_" + claimB + ".json"}
	if !slices.Equal(left, want) {
		t.Errorf("left %v: want %v", left, want)
	}

	missing := Store{Directory: filepath.Join(n.root, "none")}
	if removed, err := missing.Collect(func(string) bool { return false }); err != nil || removed != nil {
		t.Errorf("no directory: %v, %v", removed, err)
	}
}
