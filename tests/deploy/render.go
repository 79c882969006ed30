// Renders a Helm chart as helm does: Go's text/template with the functions of sprig, and those that
// helm adds. For where there is no helm; what helm alone has (hooks, lookup, dependencies) is not
// here, and a chart that uses it fails.
//
//	render CHART RELEASE [VALUES...]    prints all templates, as documents of YAML; NOTES.txt on standard
//	                                    error
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type table = map[string]interface{}

func fail(format string, words ...interface{}) {
	fmt.Fprintf(os.Stderr, "render: "+format+"\n", words...)
	os.Exit(1)
}

func read(path string) table {
	text, err := os.ReadFile(path)
	if err != nil {
		fail("%v", err)
	}
	values := table{}
	// Strict: a key that is there twice is a mistake.
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		fail("%s: %v", path, err)
	}
	return values
}

// As helm lays values over a chart's: tables are merged, all else is replaced.
func merge(over, under table) table {
	for key, value := range over {
		a, isTable := value.(table)
		b, wasTable := under[key].(table)
		if isTable && wasTable {
			under[key] = merge(a, b)
		} else {
			under[key] = value
		}
	}
	return under
}

func main() {
	if len(os.Args) < 3 {
		fail("usage: render CHART RELEASE [VALUES...]")
	}
	chart := os.Args[1]
	values := read(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[3:] {
		values = merge(read(path), values)
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	capital := table{}
	for key, value := range about {
		capital[strings.ToUpper(key[:1])+key[1:]] = value
	}

	root := template.New("").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // as helm: nothing of the machine gets in
	delete(functions, "expandenv")
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["fail"] = func(why string) (string, error) { return "", fmt.Errorf("%s", why) }
	functions["required"] = func(why string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", why)
		}
		return value, nil
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	root.Funcs(functions)

	var names []string
	folder := filepath.Join(chart, "templates")
	err := filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(chart, path)
		if !strings.HasPrefix(filepath.Base(path), "_") {
			names = append(names, name)
		}
		_, err = root.New(name).Parse(string(text))
		return err
	})
	if err != nil {
		fail("%v", err)
	}
	sort.Strings(names)
	for _, name := range names {
		data := table{
			"Values":       values,
			"Chart":        capital,
			"Release":      table{"Name": os.Args[2], "Namespace": "default", "Service": "Helm", "IsInstall": true, "IsUpgrade": false, "Revision": 1},
			"Capabilities": table{"KubeVersion": table{"Version": "v1.29.0", "Major": "1", "Minor": "29"}},
			"Template":     table{"Name": name, "BasePath": folder},
		}
		var text strings.Builder
		if err := root.ExecuteTemplate(&text, name, data); err != nil {
			fail("%v", err)
		}
		if filepath.Base(name) == "NOTES.txt" {
			fmt.Fprint(os.Stderr, text.String())
			continue
		}
		fmt.Printf("---\n# Source: %s\n%s\n", name, text.String())
	}
}
