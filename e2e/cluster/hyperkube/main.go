// Every Kubernetes component that a box needs, in one binary: the name it is called by, or else the
// first argument, picks the component. One link step and one shared text segment instead of seven.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "usage: hyperkube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubectl ..."

func cobraCommand(component string) func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":              proxy.NewProxyCommand,
		"kubectl":                 kubectl.NewDefaultKubectlCommand,
	}[component]
}

func known(component string) bool {
	return component == "etcd" || cobraCommand(component) != nil
}

func main() {
	component := filepath.Base(os.Args[0])
	if !known(component) && len(os.Args) > 1 {
		component = os.Args[1]
		os.Args = os.Args[1:]
	}
	if !known(component) {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if component == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	os.Exit(cli.Run(cobraCommand(component)()))
}
